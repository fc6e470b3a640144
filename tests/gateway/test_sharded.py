"""A gateway before a sharded cluster: drivers watch all shards as through a mongos."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from bson import MaxKey

from gateway.running_gateway import RunningGateway
from tailrace.driver import watch
from tailrace.stand import ShardedCluster

NAMESPACE = "shop.orders"


def cut(cluster: ShardedCluster, shards: int) -> None:
    """Give each shard ten users of one collection."""
    cluster.create_database("shop")
    cluster.shard_collection(NAMESPACE, {"user": 1})
    for number in range(1, shards):
        upper: Any = 10 * (number + 1) if number + 1 < shards else MaxKey()
        cluster.move_range(NAMESPACE, f"s{number}", min={"user": 10 * number}, max={"user": upper})


@pytest.mark.parametrize(
    "shards", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(3, marks=pytest.mark.long)]
)
def test_drivers_watch_all_shards_in_one_order(
    start_sharded: Callable[..., ShardedCluster], start_gateway: Callable[..., RunningGateway], shards: int
) -> None:
    """`make cluster` runs it with one and three shards too."""
    cluster = start_sharded("6.0.5", shards=shards, parameters={"writePeriodicNoops": False})
    cut(cluster, shards)
    gateway = start_gateway(cluster.config.uri, watch_only=True)
    with gateway.client() as client, client.shop.orders.watch() as pymongos, watch(client.shop) as ours:
        for number in range(20):
            cluster.insert(NAMESPACE, {"_id": number, "user": number * 7 % (10 * shards)})
        seen = [next(pymongos) for _ in range(20)]
        assert [event["documentKey"]["_id"] for event in seen] == list(range(20))
        assert [next(ours)["documentKey"]["_id"] for _ in range(20)] == list(range(20))
        for number in (0, 7, 18):
            with client.shop.orders.watch(resume_after=seen[number]["_id"]) as resumed:
                rest = [next(resumed)["documentKey"]["_id"] for _ in range(19 - number)]
                assert rest == list(range(number + 1, 20))
        matched = client.shop.orders.watch(
            [{"$match": {"fullDocument.user": {"$lt": 5}}}], start_at_operation_time=seen[0]["clusterTime"]
        )
        with matched:
            wanted = [number for number in range(20) if number * 7 % (10 * shards) < 5]
            assert [next(matched)["documentKey"]["_id"] for _ in wanted] == wanted


def test_a_removed_shard_is_drained_and_forgotten(
    start_sharded: Callable[..., ShardedCluster], start_gateway: Callable[..., RunningGateway]
) -> None:
    quick = {"writePeriodicNoops": False, "orphanCleanupDelaySecs": 0}
    cluster = start_sharded("6.0.5", shards=2, parameters=quick)
    cut(cluster, 2)
    gateway = start_gateway(cluster.config.uri, watch_only=True)
    with gateway.client() as client, watch(client.shop.orders, timeout_ms=30_000) as stream:
        for number in range(6):
            cluster.insert(NAMESPACE, {"_id": number, "user": number * 7 % 20})
        cluster.move_range(NAMESPACE, "s0", min={"user": 10}, max={"user": MaxKey()})
        for _ in range(100):
            told = cluster.run_on_config({"_configsvrRemoveShard": "s1"})
            if told.get("state") == "completed":
                break
            time.sleep(0.05)
        assert told["state"] == "completed", told
        cluster.insert(NAMESPACE, {"_id": 6, "user": 15})
        assert [next(stream)["documentKey"]["_id"] for _ in range(7)] == list(range(7))
        (cursor,) = gateway.gateway.cursors
        deadline = time.monotonic() + 200
        while "s1" in gateway.hub.shards:
            assert time.monotonic() < deadline
            assert stream.try_next() is None
        cluster.shards["s1"].primary.kill()
        cluster.insert(NAMESPACE, {"_id": 7, "user": 15})
        assert next(stream)["documentKey"]["_id"] == 7
        assert "s1" not in cursor.subscription.own.merge.positions
        cluster.shards["s1"].nodes[0].restart()  # so that its clients can say goodbye
