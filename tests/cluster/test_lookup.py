"""`updateLookup` in a cluster: the document is found on the shard that owns it now, not where it was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.test_cluster import NAMESPACE, sharded, subscribe, take
from tailrace.cluster import ClusterHub
from tailrace.stand import ShardedCluster

Document = dict[str, Any]


def updated(hub: ClusterHub, since: Document, count: int) -> dict[Any, Document | None]:
    """The looked up documents of updates since a token, by `_id`."""
    stream = subscribe(hub, resumeAfter=since, fullDocument="updateLookup")
    try:
        events = take(stream, count)
    finally:
        stream.close()
    return {e["documentKey"]["_id"]: e["fullDocument"] for e in events if e["operationType"] == "update"}


@pytest.mark.parametrize("version", ["6.0.5", pytest.param("4.2.6", marks=pytest.mark.long)])
def test_documents_are_found_where_they_have_moved_to(
    start_sharded: Callable[..., ShardedCluster], version: str
) -> None:
    with sharded(start_sharded, 2, version) as (cluster, hub):
        start = subscribe(hub).position.to_document()
        users = {"stays": 1, "moves": 5, "moves and changes": 6, "moves and goes": 7, "was there": 15}
        for key, user in users.items():
            cluster.insert(NAMESPACE, {"_id": key, "user": user})
            cluster.update(NAMESPACE, {"_id": key, "user": user}, {"$set": {"version": 1}})
        documents = {key: {"_id": key, "user": user, "version": 1} for key, user in users.items()}
        assert updated(hub, start, 10) == documents

        cluster.move_range(NAMESPACE, "s1", min={"user": 5}, max={"user": 10})  # s0 keeps copies for a while
        cluster.update(NAMESPACE, {"_id": "moves and changes", "user": 6}, {"$set": {"version": 2}})
        cluster.delete(NAMESPACE, {"_id": "moves and goes", "user": 7})
        documents["moves and changes"]["version"] = 2
        now: dict[str, Document | None] = {**documents, "moves and goes": None}
        assert updated(hub, start, 12) == now

        plain = subscribe(hub, "plain", fullDocument="updateLookup")  # all of it is on the primary shard of `shop`
        collection = cluster.shard_client("s0").shop.plain
        collection.insert_one({"_id": 1})
        collection.update_one({"_id": 1}, {"$set": {"version": 1}})
        assert take(plain, 2)[1]["fullDocument"] == {"_id": 1, "version": 1}
