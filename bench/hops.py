"""How the way of an insert is timed: to a watcher, to a Kafka consumer, to a feature in Redis, to a row in Iceberg.

Each turn first writes documents that do not count until one has arrived, then the counted ones at a steady rate, then
one that says that it is the last.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import Consumer

from bench.accounting import Meter
from bench.contestant import Contestant, ContestantFailed, LineProcess, ProcessContestant, file_name
from bench.feature_set import NAME
from bench.figures import percentile
from bench.peers.connect import Connector
from bench.workload import Client, SteadyWriter, is_probe
from tailrace.warehouse import read_tables
from tailrace.warehouse.tables.states import SNAPSHOTS_SHOWN, Snapshot

_AT = re.compile(rb'at_us\\?": ?(?:\{\\?"\$numberLong\\?": ?\\?")?(\d+)')
_SECONDS_TO_OPEN = 240.0
_SECONDS_TO_ARRIVE = 60.0
_WARM_UP = 0.2
"""The share of a turn's documents that do not count."""
_LEAST = 0.9
"""Who lets fewer than this share of the documents arrive in time does not keep up."""
_turns = itertools.count()


class Load:
    """What is written in one turn."""

    def __init__(self, client: Client, count: int, per_second: float, collection: str = "orders") -> None:
        self._client = client
        self.count = count
        self._per_second = per_second
        self._collection = collection

    def prime(self, has_arrived: Callable[[], bool], user: str = "prime") -> None:
        """Write documents that do not count until one has arrived."""
        deadline = time.monotonic() + _SECONDS_TO_OPEN
        while True:
            fields = {"prime": True, "user_id": user, "amount": 1, "placed_at": datetime.now(UTC)}
            self._client.bench[self._collection].insert_one(fields)
            if has_arrived():
                return
            if time.monotonic() > deadline:
                raise ContestantFailed("nothing arrived")

    def write(self, about_to: Callable[[int, int], object] | None = None) -> SteadyWriter:
        """Write all at their rate, and the last one; `about_to` is told the number and time of each before it."""
        writer = SteadyWriter(self._client, self.count, self._per_second, self._collection, about_to)
        writer.start()
        writer.join()
        self._client.bench[self._collection].insert_one({"last_one": True})
        return writer


class Hop(ProcessContestant):
    """A program whose latency is taken; all turns together are in `samples`, in milliseconds."""

    def __init__(
        self, name: str, command: Sequence[str], load: Load, *, beside: Sequence[str] = (), **options: Any
    ) -> None:
        """`beside` is a job that works on the same documents all the time, and is not timed itself."""
        super().__init__(name, command, **options)
        self.load = load
        self.samples: list[float] = []
        self._beside = beside
        self._neighbour: LineProcess | None = None

    def launch(self, folder: Path) -> None:
        """Start the program, and the one beside it."""
        super().launch(folder)
        if self._beside:
            self._neighbour = LineProcess(self._beside, folder / f"{file_name(self.name)}.beside.log")

    def wait_ready(self) -> None:
        """Wait for both; the one beside it works from here on."""
        super().wait_ready()
        if self._neighbour is not None:
            self._neighbour.wait_for("ready", _SECONDS_TO_OPEN)
            self._neighbour.tell("go")
            self._neighbour.wait_for("running", _SECONDS_TO_OPEN)

    def close(self) -> None:
        """End both."""
        super().close()
        if self._neighbour is not None:
            self._neighbour.close()
            self._neighbour = None

    def run(self, meter: Meter) -> dict[str, float]:
        """Take one turn."""
        return taken(self.samples, self.turn(), self.load.count)

    def turn(self) -> list[float]:
        """The latencies of one turn in microseconds: here, those of a watcher, which times itself."""
        self.process.tell("go")
        self.load.prime(lambda: self.process.has_said("open", 0.1))
        self.load.write()
        return [float(one) for one in json.loads(self.process.wait_for("latencies", _SECONDS_TO_ARRIVE))]


def taken(samples: list[float], found: list[float], expected: int) -> dict[str, float]:
    """Keep what counts of a turn, and give its percentiles."""
    if len(found) < _LEAST * expected:
        raise ContestantFailed(f"it does not keep up: {len(found)} of {expected} documents arrived in time")
    ordered = sorted(one / 1_000 for one in found[int(len(found) * _WARM_UP) :])
    samples.extend(ordered)
    return {
        f"{name}_ms": percentile(ordered, cut) for name, cut in {"p50": 50, "p95": 95, "p99": 99, "max": 100}.items()
    }


class KafkaHop(Hop):
    """A program that sends to a topic, which is read here."""

    def __init__(self, name: str, command: Sequence[str], load: Load, servers: str, **options: Any) -> None:
        super().__init__(name, command, load, **options)
        self._servers = servers

    def turn(self) -> list[float]:
        """Time the records of its topic."""
        self.process.tell("go")
        topic = self.process.wait_for("topic", _SECONDS_TO_OPEN)
        try:
            return read_topic(self._servers, topic, self.load)
        finally:
            self.process.tell("stop")
            self.process.wait_for("over", _SECONDS_TO_ARRIVE)


class ConnectHop(Connector):
    """A connector in Kafka Connect, whose topic is read here."""

    def __init__(self, name: str, worker: Any, servers: str, settings: Any, load: Load) -> None:
        super().__init__(name, worker, servers, settings, 0)
        self.load = load
        self.samples: list[float] = []

    def run(self, meter: Meter) -> dict[str, float]:
        """Take one turn."""
        name, topic = self.begin()
        try:
            return taken(self.samples, read_topic(self._servers, topic, self.load), self.load.count)
        finally:
            self.end(name)


def read_topic(servers: str, topic: str, load: Load) -> list[float]:
    """Write, and read the topic at the same time; the latencies in microseconds."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5,
         "isolation.level": "read_committed", "allow.auto.create.topics": True,
         "topic.metadata.refresh.interval.ms": 300, "log_level": 2}
    )  # fmt: skip
    consumer.subscribe([topic])
    found: list[float] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            message = consumer.poll(0.1)
            value = message.value() if message is not None and not message.error() else None
            if value is None:
                continue
            now = time.time_ns() // 1_000
            at = _AT.search(value)
            if at:
                found.append(now - int(at[1]))
            if len(found) >= load.count:  # the last one may be in another partition, and come first
                over.set()

    try:
        load.prime(lambda: _has_record(consumer))
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        load.write()
        over.wait(_SECONDS_TO_ARRIVE)
        over.set()
        reading.join(10)
    finally:
        consumer.close()
    return found


def _has_record(consumer: Consumer) -> bool:
    message = consumer.poll(0.1)
    return message is not None and not message.error()


class RedisHop(Hop):
    """A program that keeps features; every tenth document is of a user of its own, whose key is looked for."""

    def __init__(
        self, name: str, command: Sequence[str], load: Load, redis_url: str, keys: str, **options: Any
    ) -> None:
        super().__init__(name, command, load, **options)
        self._redis = redis.Redis.from_url(redis_url)
        self._keys = keys
        self.told = ""
        """What the program said about its last turn."""

    def run(self, meter: Meter) -> dict[str, float]:
        """Take one turn."""
        expected = sum(map(is_probe, range(self.load.count)))
        return taken(self.samples, self.turn(), expected)

    def turn(self) -> list[float]:
        """Look for the keys as fast as Redis answers."""
        self.process.tell("go")
        self.process.wait_for("running", _SECONDS_TO_OPEN)
        user = f"prime-{next(_turns)}"
        self.load.prime(lambda: self._is_there(user), user)
        seen: dict[int, int] = {}
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(seen, over), daemon=True)
        looking.start()
        self.load.write(lambda number, at_us: seen.setdefault(at_us, 0) if is_probe(number) else None)
        deadline = time.monotonic() + _SECONDS_TO_ARRIVE
        while any(not arrived for arrived in list(seen.values())) and time.monotonic() < deadline:
            time.sleep(0.01)
        over.set()
        looking.join(10)
        self.process.tell("stop")
        self.told = self.process.wait_for("over", _SECONDS_TO_ARRIVE)
        return [float(arrived - begun) for begun, arrived in sorted(seen.items()) if arrived]

    def _is_there(self, user: str) -> bool:
        time.sleep(0.2)
        return bool(self._redis.exists(self._keys.format(user)))

    def _look(self, seen: dict[int, int], over: threading.Event) -> None:
        while not over.is_set():
            waiting = [begun for begun, arrived in list(seen.items()) if not arrived]
            if waiting:
                with self._redis.pipeline(transaction=False) as trip:
                    for begun in waiting:
                        trip.exists(self._keys.format(f"probe-{begun}"))
                    for begun, is_there in zip(waiting, trip.execute(), strict=True):
                        if is_there:
                            seen[begun] = time.time_ns() // 1_000
            time.sleep(0.002)


FEATURE_KEYS = f"{NAME}:{{}}:features"
NAIVE_KEYS = "naive:{}:features"


class IcebergHop(Hop):
    """The warehouse job; a row is there when the snapshot of its mirror is, whose time is in the table's metadata.

    Only the newest snapshots are shown (`SNAPSHOTS_SHOWN`), and the job expires old ones, so all that were seen are
    remembered: without the first ones rows would be counted from a wrong place.
    """

    def __init__(self, name: str, command: Sequence[str], load: Load, folder: Path, **options: Any) -> None:
        super().__init__(name, command, load, **options)
        self._folder = folder
        self._snapshots: dict[int, Snapshot] = {}
        """Every snapshot of the mirror by its id, in the order of the commits."""

    def turn(self) -> list[float]:
        """Write, and read from the metadata when each row came."""
        self.process.tell("go")
        self.process.wait_for("running", _SECONDS_TO_OPEN)
        before = self._rows()
        self.load.prime(lambda: self._waited(0.3) and self._rows() > before)
        primed = self._settled()
        writer = self.load.write()
        deadline = time.monotonic() + _SECONDS_TO_ARRIVE
        while self._rows() < primed + self.load.count + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.process.tell("stop")
        self.process.wait_for("over", _SECONDS_TO_ARRIVE)
        return self._latencies(primed, sorted(writer.begun.values()))

    def _latencies(self, primed: int, begun: list[int]) -> list[float]:
        rows, found = 0, []
        for snapshot in self._mirror():
            first, rows = rows, rows + snapshot.added_rows - snapshot.deleted_rows
            at = snapshot.at.timestamp() * 1e6
            found += [at - begun[row - primed] for row in range(first, rows) if 0 <= row - primed < len(begun)]
        return found

    def _settled(self) -> int:
        """The rows when no more come: the documents that do not count are all there."""
        rows = -1
        while rows != self._rows():
            rows = self._rows()
            time.sleep(2)
        return rows

    def _rows(self) -> int:
        return sum(snapshot.added_rows - snapshot.deleted_rows for snapshot in self._mirror())

    def _mirror(self) -> list[Snapshot]:
        tables = read_tables(self._folder)
        shown = next((one.snapshots for one in tables if one.kind == "mirror"), [])
        if len(shown) == SNAPSHOTS_SHOWN and self._snapshots.keys().isdisjoint(one.id for one in shown):
            raise ContestantFailed(f"more than {SNAPSHOTS_SHOWN} snapshots between two looks at the mirror")
        self._snapshots |= {one.id: one for one in shown}
        return list(self._snapshots.values())

    @staticmethod
    def _waited(seconds: float) -> bool:
        time.sleep(seconds)
        return True


Timed = Hop | ConnectHop
"""Contestants with `samples`."""


def samples_of(contestants: Sequence[Contestant]) -> list[tuple[Contestant, list[float]]]:
    """What each has taken in all its turns."""
    return [(one, one.samples) for one in contestants if isinstance(one, Hop | ConnectHop)]
