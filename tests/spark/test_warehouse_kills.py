"""Whatever is killed while the warehouse job runs, mirrors equal their collections and no event is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from spark_queries import python_workers, wait_until
from tailrace.settings import WarehouseSettings
from tailrace.spark.warehouse import configure_catalog
from tailrace.stand import Kafka
from tailrace.warehouse import read_tables
from warehouse_load import Load, differences, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]
SECONDS = 600.0
"""A driver that starts anew needs a minute on a machine with other work, and its first batch another one."""


class Pipeline:
    """A producer and the warehouse job, each a process of its own, started again when they were killed."""

    def __init__(self, mongodb: Any, kafka: Kafka, folder: Path, namespaces: list[str]) -> None:
        self._folder = folder
        self.lake = folder / "lake"
        self._prefix = f"kills{uuid.uuid4().hex[:8]}"
        servers = kafka.bootstrap_servers
        kafka_flags = ["--servers", servers, "--topics", rf"/{self._prefix}\..*/", "--format", "bson"]
        place = ["--checkpoint", str(folder / "checkpoint"), "--folder", str(self.lake)]
        self._commands = {
            "producer": [
                "produce", *namespaces, "--uri", mongodb.uri, "--sink", f"kafka://{servers}",
                "--format", "bson", "--store", f"file:{folder / 'positions'}",
            ],
            "driver": ["warehouse", "run", *kafka_flags, *place],
        }  # fmt: skip
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *flags: str) -> subprocess.Popen[bytes]:
        """Start a process, or give the one that runs."""
        known = self._running.get(name)
        if known is None or known.poll() is not None:
            variables = {
                "TAILRACE_CAPTURE__TOPIC_PREFIX": self._prefix,
                "TAILRACE_CAPTURE__LEASE_SECONDS": "2",
                "TAILRACE_WAREHOUSE__EVENTS_PER_BATCH": "5000",
                "TAILRACE_WAREHOUSE__MAINTAIN_BATCHES": "4",
                "TAILRACE_SPARK__MASTER": "local[2,4]",
                "TAILRACE_SPARK__LOG_LEVEL": "error",
            }
            log = (self._folder / f"{name}.log").open("ab")
            command = [sys.executable, "-m", "tailrace.cli.app", *self._commands[name], *flags]
            known = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
            self._running[name] = known
        return known

    def kill(self, name: str) -> None:
        """Kill a process, and wait for its end."""
        self._running[name].kill()
        self._running[name].wait(30)

    def kill_worker(self, chance: random.Random) -> None:
        """Kill one of the Python processes under Spark's JVM."""
        below = [pid for pid in python_workers(self._running["driver"].pid) if "pyspark" in command_of(pid)]
        workers = [pid for pid in below if "pyspark/daemon" in command_of(pid) or "pyspark.daemon" in command_of(pid)]
        if workers:
            try:
                os.kill(chance.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def finish(self) -> None:
        """Let everything that was written come to its end."""
        self.stop("producer")
        ended = self.start("producer", "--until-idle").wait(SECONDS)
        assert ended == 0, (self._folder / "producer.log").read_text()[-3000:]
        self.kill("driver")
        ended = self.start("driver", "--once").wait(SECONDS)
        assert ended == 0, (self._folder / "driver.log").read_text()[-3000:]

    def stop(self, name: str) -> None:
        """Let a process end in order."""
        self._running[name].send_signal(signal.SIGTERM)
        self._running[name].wait(60)

    def close(self) -> None:
        for name in self._running:
            self.kill(name)

    def snapshots(self) -> set[int]:
        """The snapshots of all tables."""
        return {snapshot.id for table in read_tables(self.lake) for snapshot in table.snapshots}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


class Writer(threading.Thread):
    """Writes to two collections until it is told to stop; a primary that is away is waited for."""

    def __init__(self, loads: list[Load]) -> None:
        super().__init__(daemon=True)
        self._loads = loads
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.wait(0.1):
            for load in self._loads:
                try:
                    load.step()
                except AutoReconnect:
                    continue


def check(spark: Any, pipeline: Pipeline, database: Any, start: Any) -> None:
    """Compare every mirror with its collection, and every history with the server's own stream."""
    settings = WarehouseSettings(folder=str(pipeline.lake), catalog=f"lake_{uuid.uuid4().hex[:8]}")
    configure_catalog(spark, settings)
    for name in ("orders", "users"):
        collection = database[name]
        table = f"{settings.catalog}.{database.name}.{name}"
        assert differences(spark.table(table), collection) == []
        history = spark.table(f"{table}_history").where("op != 'read'")
        tokens = [row.token for row in history.select("token").collect()]
        assert len(tokens) == len(set(tokens))
        with collection.watch(start_at_operation_time=start, max_await_time_ms=500) as stream:
            happened = set()
            while (event := stream.try_next()) is not None:
                happened.add(event["_id"]["_data"])
        # What happened before the producer began is in its snapshot.
        assert set(tokens) == {token for token in happened if token >= min(tokens)}
    assert not [table for table in read_tables(pipeline.lake) if table.kind == "dead_letters"]


def run_with_kills(spark: Any, mongodb: Any, kafka: Kafka, database: Any, folder: Path, victims: list[str]) -> None:
    chance = random.Random(5)
    loads = [Load(database.orders, 21), Load(database.users, 22)]
    for load in loads:
        load.run(30)
    start = now(database.client)
    pipeline = Pipeline(mongodb, kafka, folder, [f"{database.name}.orders", f"{database.name}.users"])
    writer = Writer(loads)
    try:
        pipeline.start("producer")
        pipeline.start("driver")
        writer.start()
        for victim in victims:
            seen = pipeline.snapshots()
            wait_until(partial(has_moved, pipeline, seen), seconds=SECONDS)
            time.sleep(chance.uniform(0, 3))
            strike(victim, pipeline, mongodb, kafka, chance)
            pipeline.start("producer")
            pipeline.start("driver")
        writer.enough.set()
        writer.join(60)
        pipeline.finish()
        check(spark, pipeline, database, start)
    finally:
        writer.enough.set()
        pipeline.close()


def has_moved(pipeline: Pipeline, seen: set[int]) -> bool:
    """Whether there is a new snapshot; what ended by itself is started again, as a supervisor of processes would."""
    for name in ("producer", "driver"):
        pipeline.start(name)
    return bool(pipeline.snapshots() - seen)


def strike(victim: str, pipeline: Pipeline, mongodb: Any, kafka: Kafka, chance: random.Random) -> None:
    if victim in ("driver", "producer"):
        pipeline.kill(victim)
    elif victim == "worker":
        pipeline.kill_worker(chance)
    elif victim == "broker":
        kafka.kill()
        kafka.restart()
    else:
        node = mongodb.nodes[0]
        node.kill()
        node.restart()


def test_a_killed_driver_leaves_no_trace(spark, mongodb, kafka, database, tmp_path):
    run_with_kills(spark, mongodb, kafka, database, tmp_path, ["driver", "worker", "driver"])


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_whatever_is_killed_leaves_no_trace(spark, start_mongodb, start_server, tmp_path):
    """`make chaos` runs it: twenty kills of the driver, its workers, the producer, the broker and the primary."""
    mongodb, kafka = start_mongodb(), start_server(Kafka)
    victims = ["driver", "worker", "broker", "driver", "mongodb", "worker", "producer", "driver", "broker", "mongodb"]
    with mongodb.client(retryWrites=True) as client:
        run_with_kills(spark, mongodb, kafka, client["chaos"], tmp_path, victims * 2)
