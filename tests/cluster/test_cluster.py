"""Streams over a real sharded cluster: ranges migrate, a shard is added, one is stopped and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import bson
from bson import MaxKey, MinKey

from tailrace.cluster import ClusterHub, MergedReading
from tailrace.engine import parse_command
from tailrace.hub import Subscription
from tailrace.stand import ShardedCluster

Document = dict[str, Any]
_PATIENCE = 40
NAMESPACE = "shop.orders"


@contextmanager
def sharded(
    start_sharded: Callable[..., ShardedCluster], shards: int, version: str = "6.0.5"
) -> Iterator[tuple[ShardedCluster, ClusterHub]]:
    """A cluster of idle shards with one collection, cut so that each has a part of it."""
    cluster = start_sharded(version, shards=shards, parameters={"writePeriodicNoops": False})
    cluster.create_database("shop")
    cluster.shard_collection(NAMESPACE, {"user": 1})
    for number in range(1, shards):
        upper: Any = 10 * (number + 1) if number + 1 < shards else MaxKey()
        cluster.move_range(NAMESPACE, f"s{number}", min={"user": 10 * number}, max={"user": upper})
    with ClusterHub(cluster.config.uri) as hub:
        yield cluster, hub


def subscribe(hub: ClusterHub, collection: str = "orders", **options: Any) -> Subscription[MergedReading]:
    command = {"aggregate": collection, "pipeline": [{"$changeStream": options}], "cursor": {}}
    return hub.subscribe(parse_command(command, "shop", hub.dialect), latest=hub.latest(), now=datetime.now(UTC))


def take(stream: Subscription[MergedReading], count: int) -> list[Document]:
    """Poll until so many events have come."""
    found: list[Document] = []
    deadline = time.monotonic() + _PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, (
            f"{len(found)} of {count} events: {keys(found)}; {stream.own.merge.backlogs}"
        )
        batch = stream.poll(7)
        found += [bson.decode(event.raw) for event in batch.events]
        if not batch.events:
            time.sleep(0.005)
    return found


def keys(events: list[Document]) -> list[tuple[str, int]]:
    return [(event["operationType"], event["documentKey"]["_id"]) for event in events]


def write(cluster: ShardedCluster, numbers: range, users: int) -> list[tuple[str, int]]:
    """Insert and update documents, one after another, on the shards that own them."""
    expected = []
    for number in numbers:
        user = number * 7 % users
        cluster.insert(NAMESPACE, {"_id": number, "user": user})
        cluster.update(NAMESPACE, {"_id": number, "user": user}, {"$set": {"paid": True}})
        expected += [("insert", number), ("update", number)]
    return expected


def test_three_shards_while_ranges_move_and_shards_come_and_go(start_sharded: Callable[..., ShardedCluster]) -> None:
    with sharded(start_sharded, 2) as (cluster, hub):
        stream = subscribe(hub)
        start = stream.position
        expected = write(cluster, range(12), 20)
        cluster.move_range(NAMESPACE, "s1", min={"user": 5}, max={"user": 10})
        expected += write(cluster, range(12, 20), 20)
        added = cluster.add_shard()
        cluster.move_range(NAMESPACE, added, min={"user": MinKey()}, max={"user": 5})
        expected += write(cluster, range(20, 32), 20)
        events = take(stream, len(expected))
        assert keys(events) == expected
        assert added in hub.shards
        assert set(stream.own.merge.positions) == set(hub.shards)

        cluster.shards["s1"].primary.kill()
        cluster.insert(NAMESPACE, {"_id": 100, "user": 1})
        deadline = time.monotonic() + _PATIENCE
        while "s1" not in hub.stalled:
            assert time.monotonic() < deadline
            assert not stream.poll().events
            time.sleep(0.05)
        assert any(backlog.shard == "s1" and backlog.blocks_merge for backlog in stream.own.merge.backlogs)
        cluster.shards["s1"].nodes[0].restart()
        expected += [("insert", 100), *write(cluster, range(101, 104), 20)]
        events += take(stream, len(expected) - len(events))
        assert keys(events) == expected

        tokens = [event["_id"] for event in events]
        for number in range(0, len(events) - 1, 9):
            resumed = subscribe(hub, resumeAfter=tokens[number])
            assert keys(take(resumed, len(events) - number - 1)) == expected[number + 1 :]
            resumed.close()
        again = subscribe(hub, resumeAfter=start.to_document())
        assert [event["_id"] for event in take(again, len(events))] == tokens
