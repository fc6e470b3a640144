"""What a batch of 1,000 events costs the warehouse job: processor time by process and step, jobs, tasks, commits.

    python -m bench.small_batches [--rows 200000] [--events 1000] [--batches 12] [--turns 3] [--ways spark,driver]

Each way has a mirror of its own with `--rows` documents. In turns, each way takes `--batches` batches of `--events`
events from Kafka (half of them inserts, half updates all over the mirror); the first turn warms the JVM up and is not
counted, nor is the first batch of each turn. Processor time does not depend on what else the machine does as much as
time does; the ratio of both ways, taken in turns, depends on it least.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.warehouse import NAMESPACE, family, fill, produce
from tailrace.cli.spark_session import spark_session
from tailrace.settings import SparkSettings, WarehouseSettings
from tailrace.spark.from_kafka import kafka_records
from tailrace.stand import Kafka
from tailrace.warehouse import job as job_module
from tailrace.warehouse import read_tables
from tailrace.warehouse.batch import driver_batch, spark_batch
from tailrace.warehouse.job import WarehouseJob

WAYS = {"spark": 0, "driver": 5_000}
"""What `warehouse.driver_events` is for each way."""
STEPS = (
    ("reading and summary", job_module, "summarise"),
    ("history", spark_batch, "append_history"),
    ("mirror", spark_batch.SparkBatch, "_mirror"),
    ("reading", WarehouseJob, "_collected"),
    ("summary", job_module, "summarise_rows"),
    ("plan", driver_batch.DriverWriter, "planned"),
    ("history", driver_batch, "append_events"),
    ("mirror", driver_batch, "_merge"),
)
"""The steps of a batch, of both ways."""
TICKS = os.sysconf("SC_CLK_TCK")


def processes(jvm: int) -> dict[str, float]:
    """Seconds of processor time so far, of this process, the JVM and the Python processes below that."""
    (_, own), *workers = family(jvm).items()
    times = os.times()
    return {
        "driver (Python)": times.user + times.system,
        "JVM": own / TICKS,
        "Python workers": sum(ticks for _, ticks in workers) / TICKS,
    }


class Costs:
    """What each batch of one way cost, by process and by step."""

    def __init__(self) -> None:
        self.batches: list[Mapping[str, float]] = []
        self.steps: dict[str, float] = defaultdict(float)
        self.jobs = self.tasks = self.counted = 0

    def median(self, name: str) -> float:
        return median(batch[name] for batch in self.batches)

    @property
    def total(self) -> float:
        return median(sum(batch.values()) for batch in self.batches)


class Steps:
    """Adds up the processor time of all processes while each step runs."""

    def __init__(self, jvm: int) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        for step, owner, name in STEPS:
            setattr(owner, name, self._timed(step, getattr(owner, name), jvm))

    def _timed(self, step: str, inner: Callable[..., Any], jvm: int) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            before = sum(processes(jvm).values())
            try:
                return inner(*arguments, **options)
            finally:
                self.seconds[step] += sum(processes(jvm).values()) - before

        return timed


def run_turn(
    spark: Any, kafka: Kafka, settings: WarehouseSettings, topic: str, checkpoint: str, steps: Steps, jvm: int
) -> Costs:
    """Bring the tables to the end of the topic; gives what every batch but the first one cost."""
    costs, marks = Costs(), []
    events = kafka_records(spark, kafka.bootstrap_servers, topic, format="bson", limit=settings.events_per_batch)
    job = WarehouseJob(settings, format="bson")
    apply = job.apply

    def marked(frame: Any, number: int) -> None:
        apply(frame, number)
        marks.append(processes(jvm))

    job.apply = marked  # type: ignore[method-assign]
    steps.seconds.clear()
    query = job.start(events, checkpoint, availableNow=True)
    query.awaitTermination()
    if query.exception():
        sys.exit(str(query.exception()))
    # From the end of one batch to the end of the next one: what Spark does around a batch is a part of it.
    for before, after in pairwise(marks):
        costs.batches.append({name: after[name] - before[name] for name in after})
    costs.steps = {name: seconds / len(marks) for name, seconds in steps.seconds.items()}
    tracker = spark.sparkContext.statusTracker()
    for number in tracker.getJobIdsForGroup(str(query.runId)):
        costs.jobs += 1
        for stage in tracker.getJobInfo(number).stageIds:
            info = tracker.getStageInfo(stage)
            costs.tasks += info.numCompletedTasks if info else 0
    costs.counted = len(marks)
    return costs


def tell(way: str, all_: list[Costs], folder: str, written: tuple[int, int]) -> None:
    total, batches = median(one.total for one in all_), sum(one.counted for one in all_)
    print(f"{way}: {total:.3f} s of processor time for a batch")
    for name in all_[0].batches[0]:
        print(f"  {name:16} {median(one.median(name) for one in all_):7.3f} s")
    for name in all_[0].steps:
        print(f"  of it {name:19} {median(one.steps.get(name, 0.0) for one in all_):7.3f} s")
    jobs, tasks = sum(one.jobs for one in all_) / batches, sum(one.tasks for one in all_) / batches
    commits, files = written
    print(f"  {jobs:.1f} Spark jobs, {tasks:.1f} tasks, {commits / batches:.1f} commits, {files / batches:.1f} files")
    for table in read_tables(folder):
        print(f"  {table.name}: {table.rows:,} rows, {table.files} files, {len(table.snapshots)} snapshots shown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--events", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ways", default="spark,driver")
    parser.add_argument("--heap", default="1g")
    chosen = parser.parse_args()
    ways = chosen.ways.split(",")
    with (
        tempfile.TemporaryDirectory() as folder,
        Kafka.start() as kafka,
        spark_session(SparkSettings(master="local[2]", log_level="error", driver_memory=chosen.heap)) as spark,
    ):
        jvm = int(spark._jvm.ProcessHandle.current().pid())
        settings = {
            way: WarehouseSettings(
                folder=f"{folder}/{way}",
                catalog=way,
                events_per_batch=chosen.events,
                maintain_batches=0,
                driver_events=WAYS[way],
            )
            for way in ways
        }
        for one in settings.values():
            fill(spark, one, chosen.rows)
        admin, steps = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}), Steps(jvm)
        costs: dict[str, list[Costs]] = {way: [] for way in ways}
        written: dict[str, tuple[int, int]] = dict.fromkeys(ways, (0, 0))
        for turn in range(chosen.turns + 1):
            topic = f"turn{turn}"
            admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(60)
            produce(kafka, topic, chosen.events * chosen.batches, chosen.rows, turn + 2)
            for way in ways:
                before = counts(settings[way].folder)
                found = run_turn(spark, kafka, settings[way], topic, f"{folder}/{way}-{turn}", steps, jvm)
                print(f"turn {turn}, {way}: {found.total:.3f} s a batch{' (warm-up)' if not turn else ''}", flush=True)
                if turn:
                    costs[way].append(found)
                    after = counts(settings[way].folder)
                    commits, files = (new - old for new, old in zip(after, before, strict=True))
                    written[way] = written[way][0] + commits, written[way][1] + files
        for way in ways:
            tell(way, costs[way], settings[way].folder, written[way])
        if len(ways) == 2:
            first, second = (median(one.total for one in costs[way]) for way in ways)
            print(f"{ways[1]} / {ways[0]}: {second / first:.3f}")


def counts(folder: str) -> tuple[int, int]:
    """The snapshots and the files of a warehouse so far; nothing is removed while this runs."""
    tables = Path(folder, NAMESPACE["db"])
    commits = sum(len(list(path.glob("snap-*"))) for path in tables.glob("*/metadata"))
    return commits, sum(1 for path in tables.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
