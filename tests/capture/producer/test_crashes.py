"""The producer is killed with SIGKILL, at random moments and exactly before and after each step of the commit order.

`make crash` runs the long form: 100 random kills for each guarantee.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from pymongo.database import Database

from crash_process import start_capture
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.capture.recovery.topic_reader import TopicContents, topics_like
from tailrace.stand import Kafka, ReplicaSet
from waiting import SECONDS

KEYS = 20
COMMIT_ORDER = {
    "at-least-once": ("read", "converted", "added", "acknowledged", "before-save", "after-save"),
    "exactly-once": ("read", "converted", "added", "before-commit", "after-commit", "acknowledged"),
}
GUARANTEES = pytest.mark.parametrize("delivery", list(COMMIT_ORDER))


class Writer:
    """Counts up in a few documents, so that every event says which one of its document it is."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.counts = [0] * KEYS

    @contextmanager
    def running(self) -> Iterator[None]:
        for key in range(KEYS):
            self._collection.insert_one({"_id": key, "n": 0})
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(SECONDS)

    def _write(self) -> None:
        chance = random.Random(3)
        while not self._stop.is_set():
            key = chance.randrange(KEYS)
            self.counts[key] += 1
            self._collection.replace_one({"_id": key}, {"n": self.counts[key]})
            self._stop.wait(0.001)


def settings_for(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path, delivery: str
) -> dict[str, Any]:
    name = f"{database.name}-{delivery}-{tmp_path.parent.name[-6:]}"
    stores = {
        "at-least-once": f"file:{tmp_path}",
        "exactly-once": f"kafka://{kafka.bootstrap_servers}/{name}-positions",
    }
    return {
        "mongodb.uri": mongodb.uri,
        "capture.name": name,
        "capture.namespaces": (f"{database.name}.counters",),
        "capture.sink": f"kafka://{kafka.bootstrap_servers}",
        "capture.topic_prefix": name,
        "capture.partitions": 3,
        "capture.delivery": delivery,
        "capture.position_store": stores[delivery],
        "capture.commit_interval_seconds": 0.02,
    }


def delivered(kafka: Kafka, prefix: str) -> dict[int, list[int]]:
    """The numbers of each document, as a consumer that reads committed records sees them."""
    address = KafkaAddress(kafka.bootstrap_servers)
    seen: dict[int, list[int]] = defaultdict(list)
    for message in TopicContents(address, topics_like(address, rf"{prefix}\.test\d+\.counters")).messages():
        assert message.value is not None
        event = orjson.loads(message.value)
        seen[event["documentKey"]["_id"]].append(event["fullDocument"]["n"])
    return seen


def check_at_least_once(numbers: list[int], last: int, crashes: int) -> None:
    """Nothing is lost; what comes again comes in order, from the last position on, at most once per crash."""
    newest, steps_back = -1, 0
    expected = 0
    for number in numbers:
        if number != expected:
            assert number <= newest, f"{newest + 1} is lost: {number} came after {expected - 1}"
            steps_back += 1
        expected = number + 1
        newest = max(newest, number)
    assert newest == last
    assert steps_back <= crashes


def finish(flags: dict[str, Any]) -> None:
    process = start_capture(flags, stop_when_idle=True)
    process.join(SECONDS)
    assert process.exitcode == 0


def check(delivery: str, kafka: Kafka, prefix: str, counts: list[int], crashes: int) -> None:
    seen = delivered(kafka, prefix)
    assert sorted(seen) == list(range(KEYS))
    for key, last in enumerate(counts):
        if delivery == "exactly-once":
            assert seen[key] == list(range(last + 1)), f"document {key}"
        else:
            check_at_least_once(seen[key], last, crashes)


@pytest.mark.parametrize("source", ["change-stream", "oplog"])
@GUARANTEES
def test_killed_before_and_after_each_step_of_the_commit_order(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path, delivery: str, source: str
) -> None:
    flags = settings_for(mongodb, kafka, database, tmp_path, delivery)
    flags["capture.source"] = source
    finish(flags)
    writer = Writer(database.counters)
    with writer.running():
        for point in COMMIT_ORDER[delivery]:
            process = start_capture(flags, die_at=(point, 3))
            process.join(SECONDS)
            assert process.exitcode == -9, f"it did not come to {point}"
    finish(flags)
    check(delivery, kafka, flags["capture.topic_prefix"], writer.counts, len(COMMIT_ORDER[delivery]))


def kill_at_random(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path, delivery: str, times: int
) -> None:
    flags = settings_for(mongodb, kafka, database, tmp_path, delivery)
    finish(flags)
    writer, chance = Writer(database.counters), random.Random(delivery)
    with writer.running():
        for _ in range(times):
            process = start_capture(flags)
            time.sleep(chance.uniform(0.05, 1.2))
            process.kill()
            process.join(SECONDS)
    finish(flags)
    check(delivery, kafka, flags["capture.topic_prefix"], writer.counts, times)
    with open_store(flags["capture.position_store"]) as store:
        position = store.load(flags["capture.name"])
    assert position is not None
    assert position.counts.events >= sum(writer.counts)


@GUARANTEES
def test_killed_at_random_moments(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path, delivery: str
) -> None:
    kill_at_random(mongodb, kafka, database, tmp_path, delivery, times=12)


@pytest.mark.long
@pytest.mark.timeout(900)
@GUARANTEES
def test_killed_at_a_hundred_random_moments(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path, delivery: str
) -> None:
    """Run by `make crash`."""
    kill_at_random(mongodb, kafka, database, tmp_path, delivery, times=100)
