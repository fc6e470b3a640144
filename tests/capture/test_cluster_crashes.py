"""A producer on the oplogs of a sharded cluster is killed with SIGKILL, and each shard goes on where it stood."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from capture.producer.test_crashes import COMMIT_ORDER, check_at_least_once, delivered, finish
from crash_process import start_capture
from sharded_counters import KEYS, Counters
from tailrace.capture.positions import open_store
from tailrace.stand import Kafka, ShardedCluster
from waiting import SECONDS

_POINTS = {"at-least-once": ("added", "after-save"), "exactly-once": ("before-commit", "after-commit")}


def settings_for(
    cluster: ShardedCluster, kafka: Kafka, counters: Counters, folder: Path, delivery: str, order: str
) -> dict[str, Any]:
    name = f"{counters.namespace}-{delivery}-{order}-{folder.parent.name[-6:]}"
    stores = {
        "at-least-once": f"file:{folder}",
        "exactly-once": f"kafka://{kafka.bootstrap_servers}/{name}-positions",
    }
    return {
        "mongodb.uri": cluster.config.uri,
        "capture.name": name,
        "capture.source": "oplog",
        "capture.order": order,
        "capture.start": "now",
        "capture.namespaces": (counters.namespace,),
        "capture.sink": f"kafka://{kafka.bootstrap_servers}",
        "capture.topic_prefix": name,
        "capture.partitions": 3,
        "capture.delivery": delivery,
        "capture.position_store": stores[delivery],
        "capture.commit_interval_seconds": 0.02,
    }


def kill(flags: dict[str, Any], counters: Counters, points: tuple[str, ...], at_random: int) -> None:
    """Let the producer die at each of the points, and then at random moments, while documents are written."""
    finish(flags)
    counters.insert()
    chance = random.Random(flags["capture.name"])
    with counters.counting():
        for point in points:
            process = start_capture(flags, die_at=(point, 3))
            process.join(SECONDS)
            assert process.exitcode == -9, f"it did not come to {point}"
        for _ in range(at_random):
            process = start_capture(flags)
            time.sleep(chance.uniform(0.3, 2.0))
            process.kill()
            process.join(SECONDS)
    finish(flags)


def check(flags: dict[str, Any], kafka: Kafka, counters: Counters, crashes: int) -> None:
    seen = delivered(kafka, flags["capture.topic_prefix"])
    assert sorted(seen) == list(range(KEYS))
    for key, last in enumerate(counters.counts):
        if flags["capture.delivery"] == "exactly-once":
            assert seen[key] == list(range(last + 1)), f"document {key}"
        else:
            check_at_least_once(seen[key], last, crashes)
    with open_store(flags["capture.position_store"]) as store:
        position = store.load(flags["capture.name"])
    assert position is not None
    assert sorted(position.shards) == ["s0", "s1", "s2"]


@pytest.mark.parametrize(("delivery", "order"), [("at-least-once", "strict"), ("exactly-once", "per-key")])
def test_killed_nothing_is_lost_and_the_order_of_each_key_holds(
    shared_sharded: ShardedCluster, kafka: Kafka, counters: Counters, tmp_path: Path, delivery: str, order: str
) -> None:
    flags = settings_for(shared_sharded, kafka, counters, tmp_path, delivery, order)
    points = _POINTS[delivery]
    kill(flags, counters, points, at_random=0)
    check(flags, kafka, counters, len(points))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ["strict", "per-key"])
@pytest.mark.parametrize("delivery", list(COMMIT_ORDER))
def test_killed_at_many_moments(
    shared_sharded: ShardedCluster, kafka: Kafka, counters: Counters, tmp_path: Path, delivery: str, order: str
) -> None:
    """Run by `make crash`."""
    flags = settings_for(shared_sharded, kafka, counters, tmp_path, delivery, order)
    points = COMMIT_ORDER[delivery]
    kill(flags, counters, points, at_random=20)
    check(flags, kafka, counters, len(points) + 20)
