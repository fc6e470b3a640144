"""A shard joins a running stream where it was added: nothing it has done since is lost, nothing comes twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import MinKey

from cluster.test_cluster import NAMESPACE, keys, sharded, subscribe, take
from tailrace.engine import parse_command
from tailrace.stand import ReplicaSet, ShardedCluster


@pytest.mark.parametrize(
    ("version", "step"),
    [
        ("6.0.5", 11),
        pytest.param("6.0.5", 1, marks=pytest.mark.long),
        pytest.param("4.2.6", 1, marks=pytest.mark.long),
    ],
)
def test_writes_go_on_while_a_shard_is_added_and_given_a_range(
    start_sharded: Callable[..., ShardedCluster], version: str, step: int
) -> None:
    """`make cluster` resumes from every token, on 4.2 too."""
    with sharded(start_sharded, 1, version) as (cluster, hub):
        stream = subscribe(hub)
        for number in range(5):
            cluster.insert(NAMESPACE, {"_id": number, "user": number})
        added: list[str] = []

        def add_and_move() -> None:
            added.append(cluster.add_shard())
            cluster.move_range(NAMESPACE, added[0], min={"user": MinKey()}, max={"user": 5})

        moving = threading.Thread(target=add_and_move, daemon=True)
        moving.start()
        number, left = 5, 20
        while left:
            cluster.insert(NAMESPACE, {"_id": number, "user": number % 10})
            number += 1
            left -= not moving.is_alive()
        events = take(stream, number)
        assert keys(events) == [("insert", each) for each in range(number)]
        assert added[0] in stream.own.merge.positions
        shards = {cluster.owner_of(NAMESPACE, {"user": user}) for user in range(10)}
        assert shards == {"s0", added[0]}

        for index in range(0, number - 1, step):
            resumed = subscribe(hub, resumeAfter=events[index]["_id"])
            assert take(resumed, number - index - 1) == events[index + 1 :]
            resumed.close()


def test_what_happens_in_a_database_that_a_new_shard_brought_is_seen(
    start_sharded: Callable[..., ShardedCluster], start_mongodb: Callable[..., ReplicaSet]
) -> None:
    """No range ever moves to that shard, so a router that waits for a migration never hears of it."""
    with sharded(start_sharded, 1) as (cluster, hub):
        newcomer = start_mongodb("6.0.5", name="new", role="shardsvr")
        with newcomer.client() as client:
            client.brought.things.insert_one({"_id": "before"})
            command = {"aggregate": 1, "pipeline": [{"$changeStream": {"allChangesForCluster": True}}], "cursor": {}}
            spec = parse_command(command, "admin", hub.dialect)
            stream = hub.subscribe(spec, latest=hub.latest(), now=datetime.now(UTC))
            cluster.run_on_config({"_configsvrAddShard": f"new/{newcomer.nodes[0].address}"})
            told: Any = cluster.run_on("cfg", {"ping": 1})["$clusterTime"]
            with client.start_session() as session:
                session.advance_cluster_time(told)
                client.brought.things.insert_one({"_id": "after"}, session=session)
        (event,) = take(stream, 1)
        assert event["documentKey"] == {"_id": "after"}
        assert bson.encode(event["ns"]) == bson.encode({"db": "brought", "coll": "things"})
