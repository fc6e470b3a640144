"""The warehouse job: events a second into the history and into a mirror of a million rows, and whether that stays so.

    python -m bench.warehouse [--rows 1000000] [--events 400000] [--batch 100000] [--days 40] [--heap 1g]

The mirror is filled with `--rows` documents. Then `--warm-up` and `--events` events (half of them inserts, half updates
with their documents, all over the mirror) are read from Kafka topics, and the time of each batch of the second is
divided into reading, history and mirror. `--days` small batches follow: their first and their last show whether a batch
gets slower with the past. All batches are written by Spark; `bench.small_batches` compares those of the driver.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import bson
import pyarrow as pa
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tailrace.capture.formats import make_format
from tailrace.cli.spark_session import spark_session
from tailrace.settings import SparkSettings, WarehouseSettings
from tailrace.spark import from_kafka
from tailrace.spark.columns import EventColumns
from tailrace.stand import Kafka
from tailrace.token import ResumeToken
from tailrace.warehouse import job as job_module
from tailrace.warehouse import read_tables
from tailrace.warehouse.batch import spark_batch
from tailrace.warehouse.job import COLUMNS, Maintenance, WarehouseJob
from tailrace.warehouse.mirror.mirror import Mirror
from tailrace.warehouse.tables.format import Commit

NAMESPACE = {"db": "bench", "coll": "orders"}
FIRST_ROWS = 1_000


def document(number: int, change: int) -> dict[str, Any]:
    fields = {"user": number % 5_000, "amount": number / 7, "paid": number % 3 == 0, "change": change}
    return {"_id": ObjectId(f"{number:024x}"), **fields, "item": {"sku": f"s{number % 900}", "n": 2}, "note": "x" * 120}


def event(number: int, operation: str, second: int, increment: int) -> bytes:
    at = Timestamp(second, increment)
    token = bson.decode(ResumeToken.high_water_mark(at).to_bson())
    data = document(number, increment)
    place = {"_id": token, "operationType": operation, "clusterTime": at, "ns": NAMESPACE}
    return bson.encode({**place, "documentKey": {"_id": data["_id"]}, "fullDocument": data})


def filling(schema: StructType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the task that gives the documents that are there at the beginning."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = EventColumns(schema)
        for batch in batches:
            yield columns.batch([event(number, "read", 1, 1) for number in batch.column(0).to_pylist()])

    return run


def fill(spark: Any, settings: WarehouseSettings, rows: int) -> None:
    """Fill the mirror: the job makes the table and its first rows, then Spark alone makes rows like them."""
    first = min(FIRST_ROWS, rows)
    ids = spark.range(first).coalesce(1)
    task = filling(StructType.fromDDL(COLUMNS))
    WarehouseJob(settings).write(ids.mapInArrow(task, COLUMNS), Commit("filling", 0))
    if rows == first:
        return
    mirror = spark.table(f"{settings.catalog}.bench.orders")
    key = F.concat(F.lit(b"\x64"), F.unhex(F.format_string("%024x", "number")), F.lit(b"\x04"))
    likes = mirror.withColumn("like", F.expr("user")).drop("_key", "user", "_bson")
    more = spark.range(first, rows).withColumnRenamed("id", "number").withColumn("like", F.expr(f"number % {first}"))
    made = (
        more.join(F.broadcast(likes), "like")
        .withColumn("_key", key)
        .withColumn("user", F.expr("cast(number % 5000 as int)"))
        # Bytes that no compression makes small, as long as a document.
        .withColumn("_bson", F.unhex(F.concat(*(F.sha2(F.concat("number", F.lit(part)), 512) for part in "abcd"))))
        .select(*mirror.columns)
    )
    made.sortWithinPartitions("_key").writeTo(f"{settings.catalog}.bench.orders").append()


def produce(kafka: Kafka, topic: str, count: int, rows: int, second: int) -> None:
    chance, written = random.Random(second), make_format("bson")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for number in range(count):
        is_new = number % 2 == 0
        key = rows + second * 10_000_000 + number if is_new else chance.randrange(rows)
        for record in written.records(event(key, "insert" if is_new else "update", second, number + 1)):
            producer.produce(topic, record.value, record.key)
        if number % 10_000 == 0:
            producer.flush(60)
    producer.flush(60)


class Phases:
    """Adds up where time goes: looks at the clock, and at those of all processes, around the steps of a batch."""

    def __init__(self, jvm: int) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self.wall: dict[str, float] = defaultdict(float)
        self.batches: list[BatchCost] = []
        self._jvm = jvm
        self._wrap(job_module, "summarise", "reading")
        self._wrap(spark_batch, "append_history", "history")
        self._wrap(spark_batch.SparkBatch, "_mirror", "mirror")
        self._wrap(Mirror, "merge", "(merge)")
        self._wrap(Maintenance, "after_batch", "maintenance")
        self._wrap_batch()

    def clear(self) -> None:
        """Forget what was seen so far."""
        self.cpu.clear()
        self.wall.clear()
        self.batches.clear()

    def rate(self, events: int, *phases: str) -> float:
        """Give the events a second that these phases would let through if they were all there is."""
        return events / sum(self.wall[phase] for phase in phases)

    def _wrap(self, owner: Any, name: str, phase: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            cpu, wall = cpu_seconds(self._jvm), time.perf_counter()
            try:
                return inner(*arguments, **options)
            finally:
                self.cpu[phase] += cpu_seconds(self._jvm) - cpu
                self.wall[phase] += time.perf_counter() - wall

        setattr(owner, name, timed)

    def _wrap_batch(self) -> None:
        inner = WarehouseJob.write

        def timed(job: WarehouseJob, *arguments: Any) -> None:
            cpu, wall = cpu_seconds(self._jvm), time.perf_counter()
            inner(job, *arguments)
            took = time.perf_counter() - wall
            self.batches.append(BatchCost(took, cpu_seconds(self._jvm) - cpu, *memory(self._jvm)))

        WarehouseJob.write = timed  # type: ignore[method-assign]


class BatchCost(NamedTuple):
    """What a batch took, and how large the processes were after it."""

    seconds: float
    cpu_seconds: float
    jvm_mb: int
    workers_mb: int


def memory(jvm: int) -> tuple[int, int]:
    """The resident memory of the JVM and of the Python processes below it, in MB."""
    own, *below = (_resident(pid) for pid in family(jvm))
    return own, sum(below)


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def family(first: int) -> dict[int, int]:
    """A process and those below it, with the ticks of processor time that each, and its dead children, have used."""
    parents: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, level = {}, {first}
    while level:
        found |= {pid: parents[pid][1] for pid in level if pid in parents}
        level = {pid for pid, (parent, _) in parents.items() if parent in level}
    return found


def cpu_seconds(jvm: int) -> float:
    """What the JVM and the Python processes below it have used of the processors, which other work does not change."""
    return sum(family(jvm).values()) / os.sysconf("SC_CLK_TCK")


def run(spark: Any, kafka: Kafka, settings: WarehouseSettings, topic: str, checkpoint: str) -> list[dict[str, Any]]:
    """Bring the tables to the end of the topic; gives what Spark says about each batch."""
    events = from_kafka(
        spark,
        kafka.bootstrap_servers,
        topic,
        schema=COLUMNS,
        keep_bad_records=True,
        max_events_per_batch=settings.events_per_batch,
    )
    query = WarehouseJob(settings).start(events, checkpoint, availableNow=True)
    query.awaitTermination()
    if query.exception():
        sys.exit(str(query.exception()))
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def tell(phases: Phases, events: int) -> None:
    """Print rates, where the time went, and what each batch cost."""
    every = phases.rate(events, "reading", "history", "mirror", "maintenance")
    cpu = sum(batch.cpu_seconds for batch in phases.batches)
    print(f"{events:,} events in {len(phases.batches)} batches, the JVM warm:")
    print(f"  into the history: {phases.rate(events, 'reading', 'history'):,.0f} events/s (reading and history)")
    print(f"  into the mirror:  {phases.rate(events, 'reading', 'mirror'):,.0f} events/s (reading and mirror)")
    print(f"  into both:        {every:,.0f} events/s, {cpu / events * 1e6:.0f} us of processor time each")
    for phase, seconds in phases.cpu.items():
        used, took = seconds / events * 1e6, phases.wall[phase] / events * 1e6
        print(f"  {phase:11} {used:6.1f} us of processor time, {took:6.1f} us of time")
    for number, batch in enumerate(phases.batches):
        print(
            f"  batch {number:2}: {batch.seconds:5.1f} s, {batch.cpu_seconds:5.1f} s of processor time,"
            f" JVM {batch.jvm_mb} MB, Python workers {batch.workers_mb} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--warm-up", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--days", type=int, default=40)
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--lake", help="a folder for the mirror; one that is there is not filled again")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Kafka.start() as kafka,
        spark_session(SparkSettings(master="local[2]", log_level="error", driver_memory=chosen.heap)) as spark,
    ):
        lake = Path(chosen.lake or f"{folder}/lake")
        settings = WarehouseSettings(
            folder=str(lake), events_per_batch=chosen.batch, maintain_batches=10, driver_events=0
        )
        jvm = int(spark._jvm.ProcessHandle.current().pid())
        if not lake.exists():
            fill(spark, settings, chosen.rows)
            print(f"filled {chosen.rows:,} rows")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for made in admin.create_topics([NewTopic(topic, 6, 1) for topic in ("warm", "large", "small")]).values():
            made.result(60)
        phases = Phases(jvm)
        for second, topic, count in ((2, "warm", chosen.warm_up), (3, "large", chosen.events)):
            produce(kafka, topic, count, chosen.rows, second)
            phases.clear()
            run(spark, kafka, settings, topic, f"{folder}/{topic}")
        tell(phases, chosen.events)
        if not chosen.days:
            return
        small = settings.model_copy(update={"events_per_batch": 1_000})
        produce(kafka, "small", 1_000 * chosen.days, chosen.rows, 4)
        phases.clear()
        run(spark, kafka, small, "small", f"{folder}/small")
        ends = [[batch.seconds * 1_000 for batch in some] for some in (phases.batches[:10], phases.batches[-10:])]
        used = [batch.cpu_seconds for batch in (*phases.batches[:10], *phases.batches[-10:])]
        print(
            f"{len(phases.batches)} batches of 1,000: the first ten {median(ends[0]):.0f} ms, the last ten"
            f" {median(ends[1]):.0f} ms; processor time {median(used[:10]):.2f} s and {median(used[10:]):.2f} s"
        )
        first, last = phases.batches[0], phases.batches[-1]
        print(f"memory of the JVM: {first.jvm_mb} MB after the first, {last.jvm_mb} MB after the last")
        for table in read_tables(settings.folder):
            print(f"  {table.name}: {table.rows:,} rows, {table.files} files, {table.bytes / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
