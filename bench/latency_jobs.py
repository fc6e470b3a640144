"""The processes whose latency is measured: they watch, send on or keep tables until the last document has come.

Every document says when its insert began (`at_us`); one with `last_one` ends a run. A watcher says `@open` at the
first event it sees, and gives its latencies in microseconds at the end. All clocks are the machine's own.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pymongo import MongoClient

from bench.child import Marks, say
from tailrace import raw
from tailrace.driver import watch
from tailrace.engine.live import watch_oplog

_numbers = itertools.count()


def _time_all(events: Iterable[tuple[int | None, bool]]) -> None:
    """Time what arrives: when each began (if it says so), and whether it is the last."""
    latencies = []
    for number, (begun, is_last) in enumerate(events):
        now = time.time_ns() // 1_000
        if number == 0:
            say("open")
        if begun is not None:
            latencies.append(now - begun)
        if is_last:
            break
    say("latencies", json.dumps(latencies))


def _decoded(stream: Iterable[dict[str, Any]]) -> Iterator[tuple[int | None, bool]]:
    for event in stream:
        document = event["fullDocument"]
        yield document.get("at_us"), "last_one" in document


def _sliced(events: Iterable[bytes]) -> Iterator[tuple[int | None, bool]]:
    for event in events:
        span = raw.find_path(event, b"fullDocument", b"at_us")
        yield None if span is None else raw.int64_at(event, span[1]), b"last_one" in event


def pymongo_watch(uri: str, events: int, marks: Marks) -> None:
    """pymongo's own `watch()`."""
    with MongoClient[Any](uri) as client, client.bench.orders.watch() as stream:
        _time_all(_decoded(stream))


class GatewayWatch:
    """pymongo's `watch()` at a gateway of its own."""

    def __init__(self, uri: str, events: int) -> None:
        from bench.drain_jobs import start_gateway

        self._gateway, port = start_gateway(uri)
        self._uri = f"mongodb://127.0.0.1:{port}/"

    def run(self, marks: Marks) -> None:
        """Watch once."""
        pymongo_watch(self._uri, 0, marks)


def driver_watch(uri: str, events: int, marks: Marks) -> None:
    """Our driver."""
    with MongoClient[Any](uri) as client, watch(client.bench.orders) as stream:
        _time_all(_decoded(stream))


def engine_watch(uri: str, events: int, marks: Marks) -> None:
    """Our engine, from the oplog."""
    with MongoClient[Any](uri) as client, watch_oplog(client.bench.orders) as stream:
        _time_all(_sliced(itertools.chain.from_iterable(batch.events for batch in stream.batches())))


def capture(uri: str, servers: str, events: int, marks: Marks, prefix: str, **options: Any) -> None:
    """Our producer, from now on, until it reads a line; who reads its topic does the timing."""
    from bench.kafka_jobs import capture_settings
    from bench.workload import operation_time
    from tailrace.capture.positions import Position
    from tailrace.capture.producer.assembly import Capture

    name = f"{prefix}-{next(_numbers)}"
    with tempfile.TemporaryDirectory() as folder:
        client: MongoClient[Any] = MongoClient(uri)
        with client, Capture.open(capture_settings(uri, servers, name, folder, **options), client) as opened:
            opened.begin_at(Position(None, operation_time(client)), reason="bench")
            producer = opened.producer()
            say("topic", f"{name}.bench.orders")
            threading.Thread(target=lambda: (sys.stdin.readline(), producer.stop()), daemon=True).start()
            producer.run()
    say("over")


def naive_to_kafka(uri: str, servers: str, events: int, marks: Marks, prefix: str) -> None:
    """One synchronous send and one token file per event."""
    from bench.kafka_jobs import send_each

    topic = f"{prefix}-{next(_numbers)}"
    with MongoClient[Any](uri) as client, client.bench.orders.watch() as stream:
        say("topic", topic)
        send_each(_until_last(stream), servers, topic)
    sys.stdin.readline()
    say("over")


def _until_last(stream: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in stream:
        yield event
        if "last_one" in event["fullDocument"]:
            return


def naive_to_redis(uri: str, redis_url: str, events: int, marks: Marks) -> None:
    """One command to Redis per event, nothing else: no window, no update, no crash survived."""
    import redis

    with (
        MongoClient[Any](uri) as client,
        client.bench.naive.watch() as stream,
        redis.Redis.from_url(redis_url) as cache,
    ):
        say("running")
        for event in _until_last(stream):
            cache.hincrby(f"naive:{event['fullDocument'].get('user_id')}:features", "n", 1)
    sys.stdin.readline()
    say("over")


class Features:
    """The features job; its query runs from the first turn to the end, as it would."""

    def __init__(self, uri: str, redis_url: str, events: int) -> None:
        from pyspark.sql.classic.dataframe import DataFrame

        from bench.feature_set import definition
        from bench.micro_batches import MicroBatches
        from tailrace.features import FeatureStore
        from tailrace.features.job import FeatureJob

        self._batches = MicroBatches()
        self._batches.time_calls(FeatureJob, "apply", "of addBatch in Python")
        self._batches.time_calls(DataFrame, "toArrow", "of that Spark's job")
        self._batches.time_calls(FeatureStore, "apply", "of that Redis")
        self._spark = open_spark()
        self._job = FeatureJob(definition(), redis_url, in_driver=True)
        self._uri = uri
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._query: Any = None

    def run(self, marks: Marks) -> None:
        """Be there for one turn."""
        if self._query is None:
            self._query = self._job.start(self._job.events(self._spark, self._uri), self._folder.name)
        _serve(self._query, self._batches.told)


class Warehouse:
    """The warehouse job: Iceberg tables in a folder."""

    def __init__(self, uri: str, folder: str, events: int, every_seconds: int = 0) -> None:
        """`every_seconds` is the least time between the beginnings of two batches."""
        from tailrace.capture.source.namespaces import Namespaces
        from tailrace.settings import WarehouseSettings
        from tailrace.warehouse.job import COLUMNS, WarehouseJob

        self._job = WarehouseJob(WarehouseSettings(folder=folder), Namespaces.parse(["bench.orders"]), uri=uri)
        options = {"uri": uri, "namespaces": "bench.orders"}
        self._events = open_spark().readStream.format("tailrace").options(**options).schema(COLUMNS).load()
        self._checkpoint = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._trigger = {"processingTime": f"{every_seconds} seconds"}
        self._query: Any = None

    def run(self, marks: Marks) -> None:
        """Be there for one turn."""
        if self._query is None:
            self._query = self._job.start(self._events, self._checkpoint.name, **self._trigger)
        _serve(self._query)


def open_spark() -> Any:
    """A Spark session that lives as long as this process."""
    from tailrace.cli.spark_session import spark_session
    from tailrace.settings import SparkSettings

    opened = spark_session(SparkSettings(master="local[2]", log_level="error", driver_memory="1g"))
    _open_sessions.append(opened)
    return opened.__enter__()


_open_sessions: list[Any] = []
"""Kept until the process ends, which ends their JVM."""


def _serve(query: Any, told: Callable[[Any], str] = lambda query: "") -> None:
    """Wait for the end of a turn, and say what is told of it; a query that failed says so."""
    say("running")
    sys.stdin.readline()
    if query.exception():
        raise query.exception()
    say("over", told(query))
