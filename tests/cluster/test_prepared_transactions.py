"""Transactions over several shards: prepared on each, committed on each, and in their place in the merged stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bson import Timestamp
from bson.int64 import Int64

from cluster.test_cluster import NAMESPACE, sharded, subscribe, take
from tailrace.stand import ShardedCluster

Document = dict[str, Any]
MAJORITY = {"writeConcern": {"w": "majority"}}


class Transaction:
    """What a transaction coordinator sends to the shards that take part."""

    def __init__(self, cluster: ShardedCluster) -> None:
        self._cluster = cluster
        self._sessions = {name: cluster.shard_client(name).start_session() for name in cluster.shards}

    def insert(self, shard: str, *documents: Document) -> None:
        version = self._cluster._catalogue.shard_version(NAMESPACE, shard)
        insert = {"insert": "orders", "documents": list(documents), "startTransaction": True, "shardVersion": version}
        self._run(shard, insert, "shop")

    def prepare(self, shard: str) -> Timestamp:
        prepared: Timestamp = self._run(shard, {"prepareTransaction": 1, **MAJORITY})["prepareTimestamp"]
        return prepared

    def commit(self, shard: str, at: Timestamp) -> None:
        self._run(shard, {"commitTransaction": 1, "commitTimestamp": at, **MAJORITY})

    def abort(self, shard: str) -> None:
        self._run(shard, {"abortTransaction": 1, **MAJORITY})

    def _run(self, shard: str, command: Document, database: str = "admin") -> Document:
        of_it = {"txnNumber": Int64(1), "autocommit": False}
        client = self._cluster.shard_client(shard)
        return dict(client[database].command({**command, **of_it}, session=self._sessions[shard]))


@pytest.mark.parametrize("version", ["6.0.5", pytest.param("4.2.6", marks=pytest.mark.long)])
def test_prepared_transactions_show_when_each_shard_commits(
    start_sharded: Callable[..., ShardedCluster], version: str
) -> None:
    with sharded(start_sharded, 2, version) as (cluster, hub):
        cluster.insert(NAMESPACE, {"_id": "before", "user": 1})
        cluster.insert(NAMESPACE, {"_id": "before too", "user": 11})
        stream = subscribe(hub)
        kept, dropped = Transaction(cluster), Transaction(cluster)
        for transaction, name in ((kept, "kept"), (dropped, "dropped")):
            transaction.insert("s0", {"_id": f"{name} 1", "user": 2}, {"_id": f"{name} 2", "user": 3})
            transaction.insert("s1", {"_id": f"{name} 3", "user": 12})
        at = max(kept.prepare("s0"), kept.prepare("s1"))
        dropped.prepare("s0")
        cluster.insert(NAMESPACE, {"_id": "between", "user": 4})  # logged behind the prepared entries
        assert [event["documentKey"]["_id"] for event in take(stream, 1)] == ["between"]
        kept.commit("s0", at)
        cluster.insert(NAMESPACE, {"_id": "on the other shard", "user": 13})
        kept.commit("s1", at)
        dropped.abort("s0")
        dropped.abort("s1")
        cluster.insert(NAMESPACE, {"_id": "after", "user": 5})
        events = take(stream, 5)
        found = [event["documentKey"]["_id"] for event in events]
        assert sorted(found) == ["after", "kept 1", "kept 2", "kept 3", "on the other shard"]
        assert found.index("kept 1") + 1 == found.index("kept 2")
        assert found[-1] == "after"
        numbers = {event["txnNumber"] for event in events if event["documentKey"]["_id"].startswith("kept")}
        assert numbers == {1}
        times = [event["clusterTime"] for event in events]
        assert times == sorted(times)
        own: list[Document] = []
        for shard in ("s0", "s1"):
            with cluster.shard_client(shard).shop.orders.watch(start_at_operation_time=at) as stream_of_shard:
                while (event := stream_of_shard.try_next()) is not None:
                    own.append(event)
        own.sort(key=lambda event: str(event["_id"]["_data"]))
        assert [event["fullDocument"] for event in events] == [event["fullDocument"] for event in own[-5:]]
        assert times == [event["clusterTime"] for event in own[-5:]]
        for index in range(4):
            resumed = subscribe(hub, resumeAfter=events[index]["_id"])
            assert take(resumed, 4 - index) == events[index + 1 :]
            resumed.close()
