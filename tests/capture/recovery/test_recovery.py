"""Snapshots and recoveries into a real Kafka, killed on the way, held against the collection with `verify`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from capture_harness import repeated
from crash_process import start_capture
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.capture.recovery.verify import Comparison
from tailrace.capture.snapshot import SnapshotProgress
from tailrace.capture.snapshot.reading import watermark
from tailrace.settings import Settings
from tailrace.stand import Kafka, ReplicaSet
from waiting import SECONDS

DOCUMENTS = 3_000


@contextmanager
def random_writes(uri: str, namespace: str) -> Iterator[None]:
    """Inserts, updates of every kind, replacements and deletes, as long as the block runs."""
    chance, array = random.Random(5), {"$type": "array"}
    database, _, name = namespace.partition(".")
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    collection = client[database][name]

    def write() -> None:
        key, kind = chance.randrange(DOCUMENTS * 2), chance.random()
        if kind < 0.3:
            collection.replace_one({"_id": key}, {"v": chance.random(), "list": [1, 2, 3]}, upsert=True)
        elif kind < 0.5:
            collection.delete_one({"_id": key})
        elif kind < 0.7:
            collection.update_one({"_id": key}, {"$set": {"w.x": chance.random()}, "$unset": {"v": 1}})
        elif kind < 0.85:
            collection.update_one({"_id": key, "list": array}, [{"$set": {"list": {"$slice": ["$list", 1]}}}])
        else:
            collection.update_one({"_id": key, "list": array}, {"$push": {"list": {"y": key}}})

    with client, repeated(write, pause=0.001):
        yield


def flags_for(uri: str, kafka: Kafka, name: str, namespace: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "mongodb.uri": uri,
        "capture.name": name,
        "capture.namespaces": (namespace,),
        "capture.format": "canonical",
        "capture.sink": f"kafka://{kafka.bootstrap_servers}",
        "capture.topic_prefix": name,
        "capture.partitions": 3,
        "capture.position_store": f"file:{folder}",
        "capture.snapshot_chunk_mb": 0.02,
        **{f"capture.{key}": value for key, value in more.items()},
    }


def run_until_idle(flags: dict[str, Any]) -> None:
    process = start_capture(flags, stop_when_idle=True)
    process.join(SECONDS)
    assert process.exitcode == 0


def compared(flags: dict[str, Any], namespace: str) -> Comparison:
    client: MongoClient[dict[str, Any]] = MongoClient(flags["mongodb.uri"])
    with client, Capture.open(Settings.load(flags=flags), client) as capture:
        (result,) = capture.verify(watermark(client), collections=[namespace])
    return result


def test_a_snapshot_killed_twenty_times_under_writes_ends_equal_to_the_source(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    database.orders.insert_many([{"_id": key, "pad": "x" * 300} for key in range(DOCUMENTS)])
    namespace = f"{database.name}.orders"
    flags = flags_for(
        mongodb.uri, kafka, f"{database.name}-snapshot", namespace, tmp_path, snapshot_documents_per_second=2_000
    )
    chance = random.Random(2)
    done = []
    with random_writes(mongodb.uri, namespace):
        for _ in range(20):
            process = start_capture(flags)
            time.sleep(chance.uniform(0.2, 0.7))
            process.kill()
            process.join(SECONDS)
            done.append(_chunks_done(tmp_path, flags["capture.name"]))
    run_until_idle(flags)
    result = compared(flags, namespace)
    assert done == sorted(done), "a finished chunk stays finished"
    assert len(set(done)) > 0, "the kills fell into the snapshot"
    assert result.is_equal, result
    assert result.documents == result.equal > DOCUMENTS // 2


def _chunks_done(folder: Path, name: str) -> int:
    with open_store(f"file:{folder}") as store:
        return SnapshotProgress(store.cells, name).summary()["chunks_done"]


def test_a_rolled_over_oplog_is_recovered_through_kills_until_the_topic_equals_the_collection(
    start_mongodb: Callable[..., ReplicaSet], kafka: Kafka, tmp_path: Path
) -> None:
    replica_set = start_mongodb(oplog_mb=1)
    namespace, name = "shop.orders", f"rolled-{tmp_path.parent.name}"
    flags = flags_for(replica_set.uri, kafka, name, namespace, tmp_path / "positions")
    with replica_set.client() as client:
        client.shop.orders.insert_many([{"_id": key, "list": [key]} for key in range(DOCUMENTS)])
        run_until_idle(flags)
        client.shop.orders.delete_many({"_id": {"$lt": 500}})
        client.shop.orders.insert_many([{"_id": f"new {key}"} for key in range(200)])
        client.shop.orders.update_many({"_id": {"$gt": 2_000}}, {"$set": {"changed": "in the gap"}})
        replica_set.roll_over_oplog()
        with random_writes(replica_set.uri, namespace):
            for point in ("before-ledger", "after-ledger", "recovery-begun", "rows", "before-chunk-done"):
                process = start_capture(flags, die_at=(point, 1))
                process.join(SECONDS)
                assert process.exitcode == -9, f"it did not come to {point}"
        run_until_idle(flags)
    result = compared(flags, namespace)
    assert result.is_equal, result
    assert result.documents > DOCUMENTS - 500
    with open_store(flags["capture.position_store"]) as store:
        (gap,) = GapLedger(store.cells, name).all()
        history = store.history(name)
    assert gap.state is GapState.CLOSED
    assert gap.deletes > 0
    assert any("gap 1" in change.why for change in history), "the audit trail says why the position moved"


@pytest.mark.parametrize("format_", ["json", "debezium"])
def test_verify_finds_what_is_missing_stale_and_extra(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path, format_: str
) -> None:
    database.orders.insert_many([{"_id": key, "v": key} for key in range(50)])
    namespace = f"{database.name}.orders"
    flags = flags_for(mongodb.uri, kafka, f"{database.name}-{format_}", namespace, tmp_path, format=format_)
    run_until_idle(flags)
    assert compared(flags, namespace).is_equal
    database.orders.insert_one({"_id": "unseen"})
    database.orders.update_one({"_id": 1}, {"$set": {"v": "changed"}})
    database.orders.delete_one({"_id": 2})
    result = compared(flags, namespace)
    assert (result.missing, result.stale, result.extra, result.equal) == (1, 1, 1, 48)
    assert result.examples == {"missing": ["unseen"], "stale": [1], "extra": [2]}
    run_until_idle(flags)
    assert compared(flags, namespace).is_equal
