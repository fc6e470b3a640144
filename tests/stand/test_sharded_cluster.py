"""Sharded clusters without a router: shards, ranges, versions, and the oplogs they leave."""

from __future__ import annotations

import bson
import pytest
from bson import MaxKey, MinKey

from tailrace.errors import StandError


def oplog_of(cluster, shard, namespace):
    """The decoded document entries of one shard."""
    entries = [bson.decode(entry) for entry in cluster.shards[shard].oplog()]
    return [entry for entry in entries if entry["ns"] == namespace and entry["op"] in "iud"]


@pytest.mark.parametrize("version", ["4.2.6", "6.0.5", "6.0.27", pytest.param("7.0.28", marks=pytest.mark.long)])
def test_a_migrated_range_moves_its_documents_and_their_writes(start_sharded, version):
    cluster = start_sharded(version, shards=2, parameters={"writePeriodicNoops": False})
    cluster.create_database("shop", primary="s0")
    cluster.shard_collection("shop.orders", {"user": 1})
    for number in range(4):
        cluster.insert("shop.orders", {"_id": number, "user": number * 10})
    assert cluster.owner_of("shop.orders", {"user": 20}) == "s0"

    cluster.move_range("shop.orders", "s1", min={"user": 20}, max={"user": MaxKey()})
    assert cluster.owner_of("shop.orders", {"user": 20}) == "s1"
    assert cluster.owner_of("shop.orders", {"user": MinKey()}) == "s0"
    cluster.update("shop.orders", {"_id": 3, "user": 30}, {"$set": {"paid": True}})
    cluster.delete("shop.orders", {"_id": 0, "user": 0})

    moved = [entry for entry in oplog_of(cluster, "s1", "shop.orders") if entry.get("fromMigrate")]
    assert [entry["o"]["_id"] for entry in moved] == [2, 3]
    update = oplog_of(cluster, "s1", "shop.orders")[-1]
    assert (update["op"], update["o2"]) == ("u", {"user": 30, "_id": 3})
    delete = oplog_of(cluster, "s0", "shop.orders")[-1]
    assert (delete["op"], delete["o"]) == ("d", {"user": 0, "_id": 0})
    entries = [bson.decode(entry) for entry in cluster.shards["s0"].oplog()]
    notes = [entry.get("o2") or {} for entry in entries]
    assert any("migrateChunkToNewShard" in (note.get("type"), next(iter(note), None)) for note in notes)


def test_inserts_carry_the_shard_key_in_their_document_key(start_sharded):
    cluster = start_sharded(shards=1)
    cluster.create_database("shop")
    cluster.shard_collection("shop.orders", {"address.city": 1})
    with cluster.shard_client("s0").shop.orders.watch(max_await_time_ms=5000) as stream:
        cluster.insert("shop.orders", {"_id": 1, "address": {"city": "Bergen"}})
        assert stream.next()["documentKey"] == {"address.city": "Bergen", "_id": 1}


def test_a_shard_is_added_while_the_cluster_runs_and_clocks_stay_together(start_sharded):
    cluster = start_sharded(shards=1)
    assert cluster.add_shard() == "s1"
    cluster.create_database("shop")
    cluster.shard_collection("shop.orders", {"_id": 1})
    cluster.insert("shop.orders", {"_id": 1})
    seen = cluster.cluster_time
    reply = cluster.run_on("s1", {"ping": 1})
    assert reply["$clusterTime"]["clusterTime"] >= seen


def test_a_collection_that_is_not_sharded_is_named_in_the_error(start_sharded):
    cluster = start_sharded(shards=1)
    with pytest.raises(StandError, match=r"shop\.nothing"):
        cluster.insert("shop.nothing", {"_id": 1})
