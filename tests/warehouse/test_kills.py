"""Whatever is killed while the jobs run: mirrors equal their collections, features equal what MongoDB says of them, and
no event is in a history twice."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from pymongo.errors import AutoReconnect, DuplicateKeyError

from feature_load import Load as Transactions
from feature_load import equal_now, transactions_toml
from spark_queries import python_workers, wait_until
from tailrace.owned import GuardedProcess
from tailrace.settings import WarehouseSettings
from tailrace.stand import Kafka, Redis
from tailrace.warehouse import read_tables
from tailrace.warehouse.lake import configure_catalog, open_lake
from warehouse_load import Load, differences, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]
SECONDS = 600.0
"""A driver that starts anew needs a minute on a machine with other work, and its first batch another one."""
Strike = Callable[[str, random.Random], None]
"""Kills what is named."""


class Pipeline:
    """A producer and the jobs, each a process of its own, started again when they were killed."""

    def __init__(
        self,
        mongodb: Any,
        kafka: Kafka,
        folder: Path,
        namespaces: list[str],
        features: list[str] | None = None,
        *,
        format: str = "iceberg",
    ) -> None:
        self._folder = folder
        self.format = format
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
        if features:
            own = ["--checkpoint", str(folder / "features-checkpoint")]
            self._commands["features"] = ["features", *features, *kafka_flags, *own]
        self._running: dict[str, GuardedProcess[bytes]] = {}

    def start_all(self) -> None:
        """Start what does not run, as a supervisor of processes would."""
        for name in self._commands:
            self.start(name)

    def start(self, name: str, *flags: str) -> GuardedProcess[bytes]:
        """Start a process, or give the one that runs."""
        known = self._running.get(name)
        if known is None or known.poll() is not None:
            variables = {
                "TAILRACE_CAPTURE__TOPIC_PREFIX": self._prefix,
                "TAILRACE_CAPTURE__LEASE_SECONDS": "2",
                "TAILRACE_WAREHOUSE__EVENTS_PER_BATCH": "5000",
                "TAILRACE_WAREHOUSE__MAINTAIN_BATCHES": "4",
                "TAILRACE_WAREHOUSE__FORMAT": self.format,
                "TAILRACE_SPARK__MASTER": "local[2,4]",
                "TAILRACE_SPARK__LOG_LEVEL": "error",
            }
            log = (self._folder / f"{name}.log").open("ab")
            command = [sys.executable, "-m", "tailrace.cli.app", *self._commands[name], *flags]
            known = GuardedProcess(command, stdout=log, stderr=log, env={**os.environ, **variables})
            self._running[name] = known
        return known

    def kill(self, name: str) -> None:
        """Kill a process, and wait for its end."""
        self._running[name].kill()
        self._running[name].wait(SECONDS)

    def kill_worker(self, name: str, chance: random.Random) -> None:
        """Kill one of the Python processes under the JVM of a job."""
        below = [pid for pid in python_workers(self._running[name].program_pid) if "pyspark" in command_of(pid)]
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
        self._running[name].wait(SECONDS)

    def close(self) -> None:
        for name in self._running:
            self.kill(name)

    def snapshots(self) -> set[tuple[str, int]]:
        """The snapshots of all tables."""
        return {(table.name, snapshot.id) for table in read_tables(self.lake) for snapshot in table.snapshots}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


class Writer(threading.Thread):
    """Writes to some collections until it is told to stop; a primary that is away is waited for."""

    def __init__(self, loads: list[Any]) -> None:
        super().__init__(daemon=True)
        self._loads = loads
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.wait(0.1):
            for load in self._loads:
                try:
                    load.step()
                except (AutoReconnect, DuplicateKeyError):  # the write that a lost primary did not confirm was there
                    continue


def check(
    spark: Any, pipeline: Pipeline, database: Any, start: Any, names: Sequence[str] = ("orders", "users")
) -> None:
    """Compare every mirror with its collection, and every history with the server's own stream."""
    catalog = f"lake_{uuid.uuid4().hex[:8]}"
    settings = WarehouseSettings(folder=str(pipeline.lake), catalog=catalog, format=pipeline.format)
    configure_catalog(spark, settings)
    lake = open_lake(spark, settings)
    for name in names:
        collection = database[name]
        assert differences(lake.table((database.name, name)), collection) == []
        history = lake.table((database.name, f"{name}_history")).where("op != 'read'")
        tokens = [row.token for row in history.select("token").collect()]
        assert len(tokens) == len(set(tokens))
        with collection.watch(start_at_operation_time=start, max_await_time_ms=500) as stream:
            happened = set()
            while (event := stream.try_next()) is not None:
                happened.add(event["_id"]["_data"])
        # What happened before the producer began is in its snapshot.
        assert set(tokens) == {token for token in happened if token >= min(tokens)}
    assert not [table for table in read_tables(pipeline.lake) if table.kind == "dead_letters"]


@contextmanager
def killing(pipeline: Pipeline, loads: list[Any], victims: list[str], strike: Strike) -> Iterator[None]:
    """Let the pipeline run under a load while one victim after the other is killed, then let it come to its end."""
    chance, writer = random.Random(5), Writer(loads)
    try:
        pipeline.start_all()
        writer.start()
        for victim in victims:
            wait_until(partial(has_moved, pipeline, pipeline.snapshots()), seconds=SECONDS)
            time.sleep(chance.uniform(0, 3))
            strike(victim, chance)
            pipeline.start_all()
        writer.enough.set()
        writer.join(SECONDS)
        pipeline.finish()
        yield
    finally:
        writer.enough.set()
        pipeline.close()


def has_moved(pipeline: Pipeline, seen: set[tuple[str, int]]) -> bool:
    """Whether there is a new snapshot; what ended by itself is started again."""
    pipeline.start_all()
    return bool(pipeline.snapshots() - seen)


def loads_of(database: Any) -> list[Any]:
    loads = [Load(database.orders, 21), Load(database.users, 22)]
    for load in loads:
        load.run(30)
    return loads


@pytest.mark.long
@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_killed_drivers_and_brokers_leave_no_trace(spark, mongodb, kafka, database, tmp_path, format):
    """`make chaos` runs it. Every run of the tests has a driver that dies in its first batch (`test_job_starts.py`)."""
    victims = ["driver", "broker and worker"]

    def strike(victim: str, chance: random.Random) -> None:
        if victim == "broker and worker":
            kafka.kill()
            pipeline.kill_worker("driver", chance)
            kafka.restart()
        else:
            pipeline.kill(victim)

    loads, start = loads_of(database), now(database.client)
    namespaces = [f"{database.name}.orders", f"{database.name}.users"]
    pipeline = Pipeline(mongodb, kafka, tmp_path, namespaces, format=format)
    with killing(pipeline, loads, victims, strike):
        check(spark, pipeline, database, start)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_whatever_is_killed_leaves_no_trace(spark, start_mongodb, start_server, tmp_path):
    """`make chaos` runs it: KILLS=20 of both drivers, their workers, producer, broker, Redis and primary, by SEED=5."""
    mongodb, kafka, server = start_mongodb(nodes=3), start_server(Kafka), start_server(Redis)
    victims = ["driver", "worker", "broker", "mongodb", "redis", "features", "features-worker", "producer"]

    def strike(victim: str, chance: random.Random) -> None:
        if victim in ("worker", "features-worker"):
            pipeline.kill_worker("driver" if victim == "worker" else "features", chance)
        elif victim in ("driver", "features", "producer"):
            pipeline.kill(victim)
        else:
            struck = {"broker": kafka, "redis": server, "mongodb": mongodb.primary}[victim]
            struck.kill()
            struck.restart()

    with mongodb.client(retryWrites=True) as client, redis.Redis.from_url(server.url) as signals:
        database = client["chaos"]
        definition = tmp_path / "features.toml"
        definition.write_text(transactions_toml("chaos.tx", "chaos"))
        loads, start = [*loads_of(database), Transactions(database.tx, 23)], now(client)
        namespaces = [f"chaos.{name}" for name in ("orders", "users", "tx")]
        pipeline = Pipeline(mongodb, kafka, tmp_path, namespaces, [str(definition), "--redis", server.url])
        chance = random.Random(int(os.environ.get("SEED", "5")))
        chosen = victims + chance.choices(victims, k=int(os.environ.get("KILLS", "20")) - len(victims))
        chance.shuffle(chosen)
        with killing(pipeline, loads, chosen, strike):
            check(spark, pipeline, database, start, ("orders", "users", "tx"))
            wait_until(lambda: equal_now(signals, database.tx, "chaos"), seconds=SECONDS)
