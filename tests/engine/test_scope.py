"""Which namespaces a stream watches."""

from __future__ import annotations

import pytest

from tailrace.engine.scope import Scope, WatchedNamespaces, split_namespace

COLLECTION = Scope.of_collection("shop", "orders")
DATABASE = Scope.of_database("shop")
CLUSTER = Scope.of_cluster()


@pytest.mark.parametrize(
    ("scope", "namespace", "watched"),
    [
        (COLLECTION, b"shop.orders", True),
        (COLLECTION, b"shop.orders.archive", False),
        (COLLECTION, b"shop2.orders", False),
        (Scope.of_collection("shop", "a.b"), b"shop.a.b", True),
        (Scope.of_collection("shop", "a.b"), b"shop.axb", False),
        (DATABASE, b"shop.anything.at.all", True),
        (DATABASE, b"shop.system.js", False),
        (DATABASE, b"shop.system_like", True),
        (DATABASE, b"shop.$cmd", False),
        (DATABASE, b"shopping.orders", False),
        (CLUSTER, b"shop.orders", True),
        (CLUSTER, b"adminx.orders", True),
        (CLUSTER, b"admin.users", False),
        (CLUSTER, b"config.settings", False),
        (CLUSTER, b"local.oplog.rs", False),
        (CLUSTER, b"shop.system.views", False),
        (CLUSTER, b"", False),
    ],
)
def test_documents(scope: Scope, namespace: bytes, watched: bool) -> None:
    namespaces = WatchedNamespaces(scope)
    assert (namespace in namespaces) is watched
    assert (namespace in namespaces) is watched, "remembered wrongly"


def test_system_events_show_some_system_collections() -> None:
    namespaces = WatchedNamespaces(DATABASE, show_system_events=True)
    for shown in (b"shop.system.js", b"shop.system.buckets.weather", b"shop.system.resharding.x"):
        assert shown in namespaces
    for hidden in (b"shop.system.views", b"shop.system.profile", b"shop.system.jsx"):
        assert hidden not in namespaces
    with_views = WatchedNamespaces(DATABASE, show_system_events=True, show_view_catalog=True)
    assert b"shop.system.views" in with_views


@pytest.mark.parametrize(
    ("scope", "namespace", "watched"),
    [
        (COLLECTION, b"shop.$cmd", True),
        (DATABASE, b"shop.$cmd", True),
        (DATABASE, b"other.$cmd", False),
        (CLUSTER, b"other.$cmd", True),
        (CLUSTER, b"admin.$cmd", False),
        (CLUSTER, b"other.orders", False),
    ],
)
def test_commands(scope: Scope, namespace: bytes, watched: bool) -> None:
    assert WatchedNamespaces(scope).has_commands_of(namespace) is watched


def test_views_are_never_part_of_a_collection() -> None:
    assert not WatchedNamespaces(COLLECTION).is_view_catalog(b"shop.system.views")
    assert WatchedNamespaces(DATABASE).is_view_catalog(b"shop.system.views")
    assert not WatchedNamespaces(DATABASE).is_view_catalog(b"other.system.views")
    assert not WatchedNamespaces(CLUSTER).is_view_catalog(b"config.system.views")


def test_names() -> None:
    assert split_namespace(b"shop.a.b") == (b"shop", b"a.b")
    assert split_namespace(b"shop") == (b"shop", b"")
    assert (COLLECTION.namespace, DATABASE.namespace) == ("shop.orders", "shop.$cmd.aggregate")
    assert CLUSTER.namespace == "admin.$cmd.aggregate"
