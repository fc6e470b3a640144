"""Who may watch what on a sharded cluster, and what the gateway itself may do there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import OperationFailure
from structlog.testing import capture_logs

from gateway.running_gateway import RunningGateway
from gateway.test_security import is_unauthorized
from gateway.test_sharded import NAMESPACE, cut
from tailrace.stand import ShardedCluster

_READS: list[object] = [{"role": "read", "db": "local"}, {"role": "read", "db": "config"}]
_EVERY_SECOND = {"periodicNoopIntervalSecs": 1}


def test_the_clusters_users_watch_what_they_may(
    start_sharded: Callable[..., ShardedCluster], start_gateway: Callable[..., RunningGateway]
) -> None:
    """The second shard is idle: a gateway that may not have it write notes goes on, and says what it lacks."""
    cluster = start_sharded("6.0.5", shards=2, auth=True, parameters=_EVERY_SECOND)
    cut(cluster, 2)
    _add_users(cluster)
    for name, is_told in (("gateway", []), ("plain", ["note_not_allowed"])):
        with capture_logs() as logs:
            gateway = start_gateway(_uri(cluster, name), watch_only=True)
            with gateway.client(username="watcher", password="secret") as client:
                with client.shop.orders.watch(max_await_time_ms=200) as stream:
                    for number in range(3):
                        cluster.insert(NAMESPACE, {"_id": f"{name} {number}", "user": 3})
                    seen = [next(stream)["documentKey"]["_id"] for _ in range(3)]
                assert seen == [f"{name} {number}" for number in range(3)]
                is_unauthorized(lambda client=client: client.other.orders.watch())
            for stranger in ("finder", "other"):
                with gateway.client(username=stranger, password="secret") as client:
                    is_unauthorized(lambda client=client: client.shop.orders.watch())
            with gateway.client() as nobody:
                is_unauthorized(lambda nobody=nobody: nobody.shop.orders.watch())
            with gateway.client(username="watcher", password="wrong") as liar:
                with pytest.raises(OperationFailure) as caught:
                    liar.shop.orders.watch()
                assert caught.value.code == 18
            gateway.close()
        assert sorted({line["event"] for line in logs if line["event"] == "note_not_allowed"}) == is_told
        assert all("appendOplogNote" in line["hint"] for line in logs if line["event"] == "note_not_allowed")


def _add_users(cluster: ShardedCluster) -> None:
    """Make users for clients, and two for gateways; roles are defined on each part, as users are."""
    shop = {"db": "shop", "collection": ""}
    defined: dict[str, list[dict[str, Any]]] = {
        "notes": [{"resource": {"cluster": True}, "actions": ["appendOplogNote"]}],
        "watchOnly": [{"resource": shop, "actions": ["changeStream", "find"]}],
        "findOnly": [{"resource": shop, "actions": ["find"]}],
    }
    for part in (cluster.config, *cluster.shards.values()):
        for role, privileges in defined.items():
            part.primary.command({"createRole": role, "privileges": privileges, "roles": []})
    cluster.add_user("gateway", "secret", [*_READS, "notes"])
    cluster.add_user("plain", "secret", _READS)
    cluster.add_user("watcher", "secret", ["watchOnly"])
    cluster.add_user("finder", "secret", ["findOnly"])
    cluster.add_user("other", "secret", [{"role": "read", "db": "other"}])


def _uri(cluster: ShardedCluster, user: str) -> str:
    root = cluster.config.credentials
    assert root is not None
    return cluster.config.uri.replace(root.uri_part, f"{user}:secret@")
