"""Who may watch what: the upstream decides, and the gateway keeps no secret."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from gateway.running_gateway import RunningGateway
from tailrace.errors import SettingsError
from tailrace.stand import ReplicaSet

Document = dict[str, Any]


def test_clients_authenticate_against_the_upstream_and_see_what_they_may(
    start_mongodb: Callable[..., ReplicaSet], start_gateway: Callable[..., RunningGateway]
) -> None:
    upstream = start_mongodb("6.0.5", auth=True)
    upstream.add_user("orders", "secret", [{"role": "read", "db": "shop"}])
    upstream.add_user("other", "secret", [{"role": "read", "db": "other"}])
    gateway = start_gateway(upstream.uri)
    with upstream.client() as root:
        root.shop.orders.insert_one({"_id": 0})
        with gateway.client(username="orders", password="secret") as reader:
            with reader.shop.orders.watch() as stream:
                root.shop.orders.insert_one({"_id": 1})
                assert next(stream)["documentKey"] == {"_id": 1}
                cursor = next(iter(gateway.gateway.cursors)).id
                with gateway.client(username="other", password="secret") as thief:
                    is_unauthorized(lambda: thief.shop.command({"getMore": cursor, "collection": "orders"}))
                    is_unauthorized(lambda: thief.shop.orders.watch().try_next())
                    is_unauthorized(lambda: thief.shop.orders.find_one())
            is_unauthorized(lambda: reader.watch().try_next())
            is_unauthorized(lambda: reader.other.watch().try_next())
            assert reader.shop.orders.count_documents({}) == 2
        with gateway.client() as nobody:
            is_unauthorized(lambda: nobody.shop.orders.watch().try_next())
        with gateway.client(username="orders", password="wrong") as liar, pytest.raises(OperationFailure) as caught:
            liar.shop.orders.watch()
        assert caught.value.code == 18


def test_a_revoked_privilege_ends_the_stream(
    start_mongodb: Callable[..., ReplicaSet], start_gateway: Callable[..., RunningGateway]
) -> None:
    upstream = start_mongodb("6.0.5", auth=True)
    upstream.add_user("orders", "secret", [{"role": "read", "db": "shop"}])
    gateway = start_gateway(upstream.uri, seconds_between_checks=0.2)
    with upstream.client() as root, gateway.client(username="orders", password="secret") as reader:
        root.shop.orders.insert_one({"_id": 0})
        with reader.shop.orders.watch(max_await_time_ms=100) as stream:
            root.shop.orders.insert_one({"_id": 1})
            assert next(stream)["documentKey"] == {"_id": 1}
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:  # it is looked at several times, and may go on
                assert stream.try_next() is None
            root.admin.command({"revokeRolesFromUser": "orders", "roles": [{"role": "read", "db": "shop"}]})
            is_unauthorized(lambda: [stream.try_next() for _ in range(300)])
        assert not gateway.hub.subscribers


def is_unauthorized(attempt: Callable[[], object]) -> None:
    with pytest.raises(OperationFailure) as caught:
        attempt()
    assert caught.value.code == 13


def test_tls_on_both_sides(
    start_mongodb: Callable[..., ReplicaSet], start_gateway: Callable[..., RunningGateway], tmp_path: Any
) -> None:
    upstream = start_mongodb("6.0.5", tls=True)
    certificate = next(tmp_path.rglob("server.pem"))
    gateway = start_gateway(upstream.uri, certificate=certificate)
    files = {"tls": True, "tlsCAFile": str(certificate.parent / "ca.pem")}
    client: MongoClient[Document] = MongoClient("127.0.0.1", gateway.port, serverSelectionTimeoutMS=10_000, **files)
    with client, client.shop.orders.watch() as stream:
        client.shop.orders.insert_one({"_id": 1})
        assert next(stream)["documentKey"] == {"_id": 1}


def test_an_open_upstream_is_not_opened_to_the_network(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet
) -> None:
    with pytest.raises(SettingsError, match="lets everybody in"):
        start_gateway(mongodb.uri, address="0.0.0.0")


def test_watch_only_refuses_everything_else(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Any
) -> None:
    gateway = start_gateway(mongodb.uri, watch_only=True)
    with gateway.client() as client:
        with pytest.raises(OperationFailure, match="change streams only") as caught:
            client[database.name].c.insert_one({"_id": 1})
        assert caught.value.code == 115
        with client[database.name].c.watch() as stream:
            database.c.insert_one({"_id": 1})
            assert next(stream)["documentKey"] == {"_id": 1}


def test_watch_only_refuses_a_stream_that_only_the_upstream_can_serve(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Any
) -> None:
    gateway = start_gateway(mongodb.uri, watch_only=True)
    command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "collation": {"locale": "en"}}
    with gateway.client() as client, pytest.raises(OperationFailure, match="change streams only"):
        client[database.name].command(command)
