"""What one address or user may have of a gateway, how long it may be idle, and what the access log says of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import structlog.testing
from bson import Int64
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from gateway.test_hostile_clients import is_dropped
from gateway.test_ownership import open_stream, read_on
from gateway.wire_client import WireClient, element
from tailrace import raw
from tailrace.stand import ReplicaSet

Document = dict[str, Any]
PING = {"ping": 1, "$db": "admin"}


def test_an_address_has_so_many_connections(start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet) -> None:
    gateway = start_gateway(mongodb.uri, address="0.0.0.0", allow_open=True, connections_per_address=2)
    with WireClient(gateway.port) as first, WireClient(gateway.port) as second:
        for client in (first, second):
            assert client.command(PING) == {"ok": 1}
        assert is_dropped(gateway.port, b"")
        with WireClient(gateway.port, source="127.0.0.2") as other:
            assert other.command(PING) == {"ok": 1}
    assert gateway.gateway.counts.refused == 1
    while gateway.gateway.counts.connections:
        continue
    with WireClient(gateway.port) as again:
        assert again.command(PING) == {"ok": 1}


def test_a_user_has_so_many_connections_and_streams(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(secured.uri, connections_per_user=2, streams_per_user=2)
    with ExitStack() as opened:
        ann = [opened.enter_context(WireClient(gateway.port)) for _ in range(3)]
        for client in ann[:2]:
            client.authenticate("ann", "secret")
        with pytest.raises(AssertionError, match="ann@admin has 2 connections already"):
            ann[2].authenticate("ann", "secret")
        with pytest.raises(ConnectionError):
            ann[2].command({"find": "c", "$db": "pub"})
        cursors = [open_stream(client) for client in ann[:2]]
        with pytest.raises(AssertionError, match="ann@admin has 2 streams already"):
            open_stream(ann[0])
        ben = opened.enter_context(WireClient(gateway.port))
        ben.authenticate("ben", "secret")
        open_stream(ben)
        ann[0].command({"killCursors": "c", "cursors": [cursors[0]], "$db": "pub"})
        open_stream(ann[0])
        assert gateway.gateway.counts.refused == 2
        ann[1].socket.close()
        while gateway.gateway.counts.connections > 2:
            continue
        late = opened.enter_context(WireClient(gateway.port))
        late.authenticate("ann", "secret")


def test_where_nobody_authenticates_an_address_has_so_many_streams(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet
) -> None:
    gateway = start_gateway(mongodb.uri, address="0.0.0.0", allow_open=True, streams_per_user=1)
    with WireClient(gateway.port) as one, WireClient(gateway.port, source="127.0.0.2") as other:
        open_stream(one)
        with pytest.raises(AssertionError, match=r"127\.0\.0\.1 has 1 streams already"):
            open_stream(one)
        open_stream(other)


def test_idle_clients_are_dropped_and_watchers_are_not_idle(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Database[Document]
) -> None:
    gateway = start_gateway(mongodb.uri, idle_seconds=0.5)
    with WireClient(gateway.port) as idle, WireClient(gateway.port) as watcher:
        idle.command(PING)
        cursor = open_stream(watcher)
        watcher.send({"getMore": cursor, "collection": "c", "maxTimeMS": 3_000, "$db": "pub"})
        with pytest.raises(ConnectionError):
            idle.reply()
        assert watcher.reply()["ok"] == 1


def test_the_access_log_says_who_watched_what_from_where_and_for_how_long(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    """The events of the first batch count too, which comes with the answer to `aggregate`."""
    begun = time.monotonic()
    with structlog.testing.capture_logs() as lines:
        gateway = start_gateway(secured.uri)
        with WireClient(gateway.port) as client, secured.client() as root:
            client.authenticate("ann", "secret")
            stage = {"$changeStream": {"startAtOperationTime": root.admin.command("ping")["operationTime"]}}
            root.pub.c.insert_one({})
            told = client.command({"aggregate": "c", "pipeline": [stage], "cursor": {}, "$db": "pub"})
            expected = len(told["cursor"]["firstBatch"]) + 2
            assert expected > 2
            cursor = Int64(told["cursor"]["id"])
            root.pub.c.insert_many([{}, {}])
            while gateway.gateway.counts.events < expected:
                read_on(client, cursor)
            client.command({"killCursors": "c", "cursors": [cursor], "$db": "pub"})
    told = _accesses(lines)
    assert [line["event"] for line in told] == ["stream_opened", "stream_closed"]
    for line in told:
        assert (line["user"], line["address"], line["namespace"]) == ("ann@admin", "127.0.0.1", "pub.c")
    assert told[1]["events"] == expected
    assert 0 < told[1]["seconds"] <= time.monotonic() - begun


def test_the_access_log_has_streams_that_the_server_serves(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    """With an option or a stage that the engine leaves out; and those of a pipeline whose places have odd names."""
    watch: Document = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "pub"}
    schema = {"$match": {"$jsonSchema": {}}}
    named = raw.array([raw.from_python({"$changeStream": {}})]).replace(b"0", b"7")
    with structlog.testing.capture_logs() as lines:
        gateway = start_gateway(secured.uri)
        with WireClient(gateway.port) as client:
            client.authenticate("ann", "secret")
            for command in (watch | {"let": {}}, watch | {"pipeline": [*watch["pipeline"], schema]}):
                assert client.command(command)["ok"] == 1, command
            pipeline = raw.element(raw.ARRAY, b"pipeline", named)
            others = [element(name, value) for name, value in watch.items() if name != "pipeline"]
            assert client.fields(others[0], pipeline, *others[1:])["ok"] == 1
    left = ["stream_left_to_upstream"] * 2
    assert [line["event"] for line in _accesses(lines)] == [*left, "stream_opened"]
    for line in _accesses(lines):
        assert (line["user"], line["address"], line["namespace"]) == ("ann@admin", "127.0.0.1", "pub.c")


def test_without_an_access_log_there_is_none(secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]) -> None:
    with structlog.testing.capture_logs() as lines:
        gateway = start_gateway(secured.uri, access_log=False)
        with WireClient(gateway.port) as client:
            client.authenticate("ann", "secret")
            client.command({"killCursors": "c", "cursors": [open_stream(client)], "$db": "pub"})
            client.command(
                {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "let": {}, "cursor": {}, "$db": "pub"}
            )
    assert _accesses(lines) == []


def _accesses(lines: list[Any]) -> list[Any]:
    return [line for line in lines if line["event"].startswith("stream_")]
