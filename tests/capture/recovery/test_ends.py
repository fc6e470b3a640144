"""Collections dropped and made again, renamed, renamed over others: real servers, six partitions, a gap behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from crash_process import start_capture
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.capture.recovery.verify import Comparison
from tailrace.capture.snapshot.reading import watermark
from tailrace.settings import Settings
from tailrace.stand import Kafka, ReplicaSet

LIVING = ("shop.again", "shop.renamed", "shop.target", "shop.there", "other.again")
"""The collections that are left after `turbulent_life`."""
DELETED = 40
"""Documents that each of them loses in the gap."""


def turbulent_life(client: MongoClient[dict[str, Any]]) -> None:
    """Let collections end in every way; what comes after an end is about the same `_id`s as what came before."""
    shop, other = client.shop, client.other
    shop.again.insert_many([{"_id": key, "life": 1} for key in range(100)])
    shop.again.drop()
    shop.again.insert_many([{"_id": key, "life": 2} for key in range(50, 150)])
    shop.old.insert_many([{"_id": key, "v": 0} for key in range(100)])
    shop.old.rename("renamed")
    shop.renamed.update_many({"_id": {"$lt": 30}}, {"$set": {"v": 1}})
    shop.old.insert_many([{"_id": key, "v": "another"} for key in range(100)])
    shop.old.drop()
    shop.target.insert_many([{"_id": key, "v": "gone"} for key in range(200)])
    shop.source.insert_many([{"_id": key, "v": "moved"} for key in range(100)])
    shop.source.rename("target", dropTarget=True)
    shop.here.insert_many([{"_id": key} for key in range(100)])
    shop.here.rename("there")
    shop.there.rename("here")
    shop.here.delete_many({"_id": {"$lt": 10}})
    shop.here.rename("there")
    other.again.insert_many([{"_id": key} for key in range(100)])
    client.drop_database("other")
    other.again.insert_many([{"_id": key, "v": 2} for key in range(90, 190)])


def flags_for(uri: str, folder: Path, name: str, sink: str, **more: Any) -> dict[str, Any]:
    return {
        "mongodb.uri": uri,
        "capture.name": name,
        "capture.namespaces": ("shop", "other"),
        "capture.sink": sink,
        "capture.topic_prefix": name,
        "capture.partitions": 6,
        "capture.position_store": f"file:{folder / 'positions'}",
        **{f"capture.{key}": value for key, value in more.items()},
    }


def run_until_idle(flags: dict[str, Any]) -> None:
    process = start_capture(flags, stop_when_idle=True)
    process.join(250)
    assert process.exitcode == 0


def compared(flags: dict[str, Any]) -> dict[str, Comparison]:
    client: MongoClient[dict[str, Any]] = MongoClient(flags["mongodb.uri"])
    with client, Capture.open(Settings.load(flags=flags), client) as capture:
        return {result.namespace: result for result in capture.verify(watermark(client))}


def test_exactly_the_deletes_of_the_gap_are_found_whatever_became_of_the_collections(
    start_mongodb: Callable[..., ReplicaSet], kafka: Kafka, tmp_path: Path
) -> None:
    replica_set = start_mongodb(oplog_mb=1)
    servers, run = f"kafka://{kafka.bootstrap_servers}", tmp_path.parent.name
    read_back = [
        flags_for(replica_set.uri, tmp_path, f"ends-{name}-{run}", servers, format=name, fields=("v",))
        for name in ("json", "flat")
    ]
    file = flags_for(
        replica_set.uri,
        tmp_path,
        "ends-file",
        f"file:{tmp_path / 'out.jsonl'}",
        inventory=f"{tmp_path / 'keys.sqlite'}",
    )
    with replica_set.client() as client:
        for flags in (*read_back, file):
            run_until_idle(flags)
        turbulent_life(client)
        for flags in (*read_back, file):
            run_until_idle(flags)
        for flags in read_back:
            found = compared(flags)
            assert sorted(found) == sorted(LIVING)
            assert all(result.is_equal for result in found.values()), found
        for namespace in LIVING:
            collection = client.get_database(namespace.split(".")[0])[namespace.split(".")[1]]
            gone = [document["_id"] for document in collection.find(limit=DELETED)]
            assert collection.delete_many({"_id": {"$in": gone}}).deleted_count == DELETED
        replica_set.roll_over_oplog()
        for flags in read_back:
            assert {name: result.extra for name, result in compared(flags).items()} == dict.fromkeys(LIVING, DELETED)
        for flags in (*read_back, file):
            run_until_idle(flags)
        for flags in read_back:
            assert all(result.is_equal for result in compared(flags).values())
    with open_store(file["capture.position_store"]) as store:
        for flags in (*read_back, file):
            (gap,) = GapLedger(store.cells, flags["capture.name"]).all()
            assert (gap.state, gap.deletes) == (GapState.CLOSED, DELETED * len(LIVING)), flags["capture.name"]
