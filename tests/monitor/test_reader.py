"""Readings of real oplogs: their edges, their size, what has left them, and who may read them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from bson import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tailrace.errors import OplogUnreadable, ServerUnreachable, SettingsError
from tailrace.monitor.liveness import State
from tailrace.monitor.observer import Consumer, Observer
from tailrace.monitor.reader import ShardReader, shard_readers, shard_uri
from tailrace.monitor.window import Oplog, Sample, lag_of
from tailrace.stand import ReplicaSet, ShardedCluster

HISTORY_LOST = {280, 286}  # 4.2 answers with the first


@pytest.mark.mongodb("4.2.6", "6.0.5", pytest.param("7.0.28", marks=pytest.mark.long))
def test_a_reading_gives_the_edges_and_the_size_of_the_oplog(mongodb: ReplicaSet) -> None:
    with shard_readers([mongodb.uri]) as (reader,):
        oplog = reader.read()
    first, last = mongodb.oplog_bounds()
    assert (oplog.shard, oplog.first) == ("rs0", first)
    assert first <= oplog.last <= last
    assert oplog.limit_bytes == 990 * 1024 * 1024
    assert 0 < oplog.used_bytes < oplog.limit_bytes
    assert oplog.complete
    assert not oplog.full


@pytest.mark.parametrize("version", ["4.2.6", "6.0.5"])
def test_a_position_is_lost_exactly_when_the_server_says_so(
    start_mongodb: Callable[..., ReplicaSet], version: str
) -> None:
    replica_set = start_mongodb(version, oplog_mb=1)
    with replica_set.client() as client:
        reader = ShardReader(client)
        client.shop.orders.insert_one({"_id": 1})
        early = reader.read()
        assert early.complete
        before_any_entry = Timestamp(early.first.time - 100, 1)
        assert early.contains(before_any_entry)
        assert server_accepts(client, before_any_entry)

        replica_set.roll_over_oplog(early.last)
        rolled = settled(reader)
        assert rolled.full
        assert not rolled.complete
        just_before = Timestamp(rolled.first.time, rolled.first.inc - 1)
        just_after = Timestamp(rolled.first.time, rolled.first.inc + 1)
        # 4.2 refuses the first entry itself, one tick more than 4.4 and later do.
        edge = just_after if version == "4.2.6" else rolled.first
        for position in (early.first, early.last, just_before, edge, just_after, rolled.last):
            assert rolled.contains(position) == server_accepts(client, position), position
        lag = lag_of([Sample(0.0, rolled, early.last)])
        assert lag.lost
        assert lag.headroom_ratio == 0


def settled(reader: ShardReader) -> Oplog:
    """A reading after the server has dropped what it wanted to drop."""
    before = reader.read()
    for _ in range(30):
        time.sleep(1.1)  # checkpoints of a small oplog come every second
        now = reader.read()
        if now.first == before.first:
            return now
        before = now
    raise AssertionError("the oplog does not settle")


def server_accepts(client: MongoClient[dict[str, Any]], position: Timestamp) -> bool:
    try:
        with client.watch(start_at_operation_time=position, max_await_time_ms=1) as stream:
            stream.try_next()
    except OperationFailure as error:
        if error.code in HISTORY_LOST:
            return False
        raise
    return True


def test_reading_local_is_enough_and_whoever_may_not_read_is_told_what_is_missing(
    start_mongodb: Callable[..., ReplicaSet],
) -> None:
    replica_set = start_mongodb(auth=True)
    assert replica_set.credentials is not None
    replica_set.add_user("watcher", "secret-1", [{"role": "read", "db": "local"}])
    replica_set.add_user("nobody", "secret-2", [{"role": "read", "db": "shop"}])
    root = replica_set.credentials.uri_part

    def uri_of(user: str) -> str:
        return replica_set.uri.replace(root, f"{user}@")

    with shard_readers([uri_of("watcher:secret-1")]) as (reader,):
        assert reader.read().shard == "rs0"
    with shard_readers([uri_of("nobody:secret-2")]) as (reader,), pytest.raises(OplogUnreadable) as refused:
        reader.read()
    assert "read` on the database `local`" in refused.value.hint
    with pytest.raises(SettingsError) as wrong, shard_readers([uri_of("nobody:wrong-3")]):
        pass
    replica_set.primary.kill()
    with pytest.raises(ServerUnreachable) as gone, shard_readers([uri_of("watcher:secret-1")], timeout_seconds=0.3):
        pass
    for error in (refused, wrong, gone):
        assert "secret" not in str(error.value)


def test_the_config_server_leads_to_every_shard(start_sharded: Callable[..., ShardedCluster]) -> None:
    cluster = start_sharded(shards=2)
    with shard_readers([cluster.config.uri]) as readers:
        oplogs = {reader.shard: reader.read() for reader in readers}
    assert list(oplogs) == ["s0", "s1"]
    for name, oplog in oplogs.items():
        assert oplog.first == cluster.shards[name].oplog_bounds()[0]
    with shard_readers([shard.uri for shard in cluster.shards.values()]) as readers:
        assert [reader.shard for reader in readers] == ["s0", "s1"]

    position = oplogs["s0"].last
    behind = {"s1": Timestamp(oplogs["s1"].last.time - 500, 1)}
    with shard_readers([cluster.config.uri]) as readers:
        reports = Observer(readers, lambda: [Consumer("orders", position, behind)]).poll()
    assert {report.oplog.shard: report.liveness and report.liveness.state for report in reports} == {
        "s0": State.IDLE,
        "s1": State.BEHIND,
    }


@pytest.mark.parametrize(
    ("uri", "hosts", "expected"),
    [
        (
            "mongodb://u:p@router:27017/?authSource=admin&directConnection=true",
            "s0/a:1,b:2",
            "mongodb://u:p@a:1,b:2/?authSource=admin&replicaSet=s0",
        ),
        ("mongodb://cfg:1/?replicaSet=cfg", "s1/a:1", "mongodb://a:1/?replicaSet=s1"),
        ("mongodb+srv://u:p@cluster.example/", "s0/a:1", "mongodb://u:p@a:1/?tls=true&replicaSet=s0"),
        ("mongodb+srv://cluster.example/?tls=false", "s0/a:1", "mongodb://a:1/?tls=false&replicaSet=s0"),
        ("mongodb://r1,r2:27018", "s0/a:1", "mongodb://a:1/?replicaSet=s0"),
    ],
)
def test_a_shard_is_reached_with_the_user_and_options_of_the_cluster(uri: str, hosts: str, expected: str) -> None:
    assert shard_uri(uri, hosts) == expected


def test_each_member_has_a_window_and_the_one_that_is_read_counts(
    start_mongodb: Callable[..., ReplicaSet],
) -> None:
    replica_set = start_mongodb(nodes=2)
    with replica_set.client(w="majority") as client, shard_readers([replica_set.uri]) as (reader,):
        client.shop.orders.insert_one({"_id": 1})
        oplog = reader.read()
        assert oplog.member == replica_set.primary.address
        (other,) = oplog.others
        assert other.member in {node.address for node in replica_set.nodes} - {oplog.member}
        assert other.last >= oplog.first
    secondary_uri = f"{replica_set.uri}{'&' if '?' in replica_set.uri else '?'}readPreference=secondary"
    with shard_readers([secondary_uri]) as (reader,):
        assert reader.read().member == other.member
