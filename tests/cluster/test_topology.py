"""What a shard is told and asked, as real servers take it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from bson import Timestamp
from bson.int64 import Int64

from tailrace.cluster import Shard, ShardClock
from tailrace.cluster.topology import time_of
from tailrace.stand import ReplicaSet, ShardedCluster


@pytest.mark.parametrize(
    ("host", "like", "uri"),
    [
        ("s0/a:1,b:2", "mongodb://c:3/?replicaSet=cfg", "mongodb://a:1,b:2/?replicaSet=s0"),
        ("s0/a:1", "mongodb://u:p@c:3/x?tls=true&replicaSet=cfg", "mongodb://u:p@a:1/?replicaSet=s0&tls=true"),
        ("s0/a:1", "mongodb+srv://u:p@c/?loadBalanced=true", "mongodb://u:p@a:1/?replicaSet=s0"),
    ],
)
def test_a_shards_uri_has_the_user_and_options_of_the_clusters(host: str, like: str, uri: str) -> None:
    assert Shard("s0", host).uri(like) == uri


@pytest.mark.parametrize("version", ["6.0.5", pytest.param("4.2.6", marks=pytest.mark.long)])
def test_an_idle_shard_writes_the_time_down_when_told_to_and_when_read(
    start_sharded: Callable[..., ShardedCluster], version: str
) -> None:
    shard = start_sharded(version, shards=1, parameters={"writePeriodicNoops": False}).shards["s0"]
    for may_write in (True, False):
        ahead = _tell_of_the_future(shard)
        with closing(ShardClock(shard.uri)) as clock:
            clock._may_write = may_write
            told = clock.now()
            assert time_of(told) >= ahead
            assert _newest(shard) < ahead
            assert clock.write_note(told, ahead)
            written = _newest(shard)
            assert written > ahead
            if may_write:
                assert not clock.write_note(told, ahead)  # it has an entry there
                assert _newest(shard) == written
                assert clock.write_note(told, ahead, in_any_case=True)
                assert _newest(shard) > written


def test_who_may_not_write_notes_reads_instead(start_mongodb: Callable[..., ReplicaSet]) -> None:
    shard = start_mongodb("6.0.5", auth=True)
    user = shard.add_user("reader", "secret", [{"role": "read", "db": "local"}])
    uri = f"mongodb://{user.uri_part}{shard.primary.address}/?replicaSet=rs0&authSource=admin"
    with closing(ShardClock(uri)) as clock:
        clock.write_note(clock.now(), _newest(shard))
        assert not clock._may_write


def _newest(shard: ReplicaSet) -> int:
    newest = shard.oplog_bounds()[1]
    return newest.time << 32 | newest.inc


def _tell_of_the_future(shard: ReplicaSet) -> int:
    """Move the clock of a shard without a write."""
    with shard.client() as root, root.start_session() as session:
        now = root.admin.command("ping")["$clusterTime"]["clusterTime"]
        ahead = Timestamp(now.time + 30, 1)
        session.advance_cluster_time({"clusterTime": ahead, "signature": {"hash": bytes(20), "keyId": Int64(0)}})
        root.admin.command("ping", session=session)
    return ahead.time << 32 | ahead.inc
