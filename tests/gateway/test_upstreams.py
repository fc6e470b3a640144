"""Ways to say what is behind a gateway: a router, shards by name, shards that go at their own pace."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from gateway.running_gateway import RunningGateway
from gateway.test_sharded import NAMESPACE, cut
from tailrace.cluster import ClusterHub
from tailrace.errors import SettingsError
from tailrace.gateway import Presentation
from tailrace.owned import GuardedProcess
from tailrace.stand import ReplicaSet, ShardedCluster


@contextmanager
def served(*options: str) -> Iterator[str]:
    """`tailrace serve` with these options; gives its URI."""
    command = [sys.executable, "-m", "tailrace.cli.app", "serve", "--port", "0", *options]
    with GuardedProcess(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def test_a_router_as_upstream_leads_to_the_shards_behind_it(
    start_sharded: Callable[..., ShardedCluster], start_gateway: Callable[..., RunningGateway]
) -> None:
    """A gateway before config servers says that it is a mongos, and answers `getShardMap` as one."""
    cluster = start_sharded("6.0.5", shards=2, parameters={"writePeriodicNoops": False})
    cut(cluster, 2)
    with pytest.raises(SettingsError, match="replica set"):
        start_gateway(cluster.config.uri, present=Presentation.REPLICA_SET)
    router = start_gateway(cluster.config.uri)
    gateway = start_gateway(router.uri)
    assert isinstance(gateway.hub, ClusterHub)
    assert set(gateway.hub.shards) == {"config", "s0", "s1"}
    with gateway.client() as client, client.shop.orders.watch() as stream:
        for number in range(6):
            cluster.insert(NAMESPACE, {"_id": number, "user": number * 7 % 20})
        assert [next(stream)["documentKey"]["_id"] for _ in range(6)] == list(range(6))
        assert client.config.shards.count_documents({}) == 2  # everything else goes through the router


def test_shards_named_by_hand_in_either_order(start_mongodb: Callable[..., ReplicaSet]) -> None:
    shards = {name: start_mongodb("6.0.5", name=name) for name in ("a", "b")}
    named = [part for name, shard in shards.items() for part in ("--shard", f"{name}={shard.uri}")]
    for order in ("strict", "per-key"):
        with served("--uri", shards["a"].uri, *named, "--order", order) as uri, MongoClient[Any](uri) as client:
            with client.shop.watch() as stream:
                written = _write(shards, order)
                events = [next(stream) for _ in range(12)]
            assert _by_shard(event["documentKey"]["_id"] for event in events) == written
            assert all(("shards" in event["_id"]) == (order == "per-key") for event in events)
            for index in (0, 5, 10):
                with client.shop.watch(resume_after=events[index]["_id"]) as resumed:
                    rest = [next(resumed)["documentKey"] for _ in range(11 - index)]
                expected = [event["documentKey"] for event in events[index + 1 :]]
                assert sorted(rest, key=str) == sorted(expected, key=str)


def _write(shards: dict[str, ReplicaSet], order: str) -> dict[str, list[str]]:
    for name, shard in shards.items():
        with shard.client() as client:
            orders = client.shop.get_collection("orders", write_concern=WriteConcern("majority"))
            for number in range(6):
                orders.insert_one({"_id": f"{name} {order} {number}"})
    return {name: [f"{name} {order} {number}" for number in range(6)] for name in shards}


def _by_shard(keys: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        found[key[0]].append(key)
    return found
