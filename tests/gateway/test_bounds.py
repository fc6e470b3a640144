"""What clients send, and what servers leave unsaid, has bounds in size and in time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson import Binary, Int64
from pymongo.database import Database

from fault_proxies import FaultProxy
from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.errors import BadFrame
from tailrace.gateway import sessions, upstream
from tailrace.gateway.sessions import SessionId
from tailrace.gateway.wire import OP_MSG, parse
from tailrace.stand import ReplicaSet
from waiting import wait_until

PING = {"ping": 1, "$db": "admin"}


def test_a_message_with_very_many_sections_is_refused() -> None:
    section = b"\x01" + struct.pack("<i", 6) + b"x\x00"
    body = b"\x00" + bson.encode(PING)
    assert parse(b"\x00" * 4 + body + section * 2, OP_MSG, 1).sequences == (section, section)
    with pytest.raises(BadFrame, match="document sequences"):
        parse(b"\x00" * 4 + body + section * 1_000, OP_MSG, 1)


def test_commands_that_the_gateway_decodes_are_small(
    gateway: RunningGateway, database: Database[dict[str, Any]]
) -> None:
    many = [Int64(number) for number in range(60_000)]
    with WireClient(gateway.port) as client:
        reply = client.command({"killCursors": "c", "cursors": many, "$db": "x"})
        assert (reply["ok"], reply["codeName"]) == (0, "BSONObjectTooLarge")
        reply = client.command({"endSessions": [{"id": Binary(bytes(16), 4)}] * 20_000, "$db": "admin"})
        assert reply["codeName"] == "BSONObjectTooLarge"
        before = gateway.gateway.counts.left_to_upstream
        for count, left in ((1_000, 0), (3_000, 1), (60_000, 2)):
            pipeline = [{"$changeStream": {}}, {"$match": {"fullDocument.n": {"$in": many[:count]}}}]
            reply = client.command({"aggregate": 1, "pipeline": pipeline, "cursor": {}, "$db": database.name})
            assert reply["ok"] == 1, reply
            assert gateway.gateway.counts.left_to_upstream == before + left


def test_sessions_that_are_named_are_read_once_however_many_cursors_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    original = SessionId.of.__func__  # type: ignore[attr-defined]

    def counting(cls: type[SessionId], lsid: Any, users: frozenset[str]) -> SessionId | None:
        nonlocal read
        read += 1
        found: SessionId | None = original(cls, lsid, users)
        return found

    monkeypatch.setattr(SessionId, "of", classmethod(counting))
    users = frozenset({"ann@admin"})
    named = [{"id": bytes([number]) * 16} for number in range(100)]
    for command in ("endSessions", "killSessions"):
        read = 0
        is_ended = sessions._ended_by(command, named, users)
        own = [SessionId(sessions.user_digest(users), bytes([number]) * 16) for number in range(200)]
        assert [is_ended(each) for each in own] == [True] * 100 + [False] * 100
        assert read == 100


def test_a_client_that_takes_no_replies_is_dropped(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(mongodb.uri, seconds_for_a_message=1.0)
    for _ in range(4):
        database.c.insert_one({"x": b"x" * 3_500_000})
    with WireClient(gateway.port) as client:
        client.send({"find": "c", "$db": database.name})
        wait_until(lambda: gateway.gateway.counts.dropped)
        wait_until(lambda: not gateway.gateway.counts.connections)


def test_a_client_that_is_dropped_and_leaves_its_last_answers_unread_is_let_go(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], start_gateway: Callable[..., RunningGateway]
) -> None:
    """They are too few for the gateway to wait with the next one, and would keep the socket for as long as it likes."""
    gateway = start_gateway(mongodb.uri, seconds_for_a_message=1.0)
    database.c.insert_one({"x": b"x" * 40_000})
    with WireClient(gateway.port) as client:
        client.command(PING)
        (connection,) = gateway.gateway._clients
        transport = connection._transport
        while not transport.get_write_buffer_size():
            before = gateway.gateway.counts.commands
            client.send({"find": "c", "$db": database.name})
            client.send(PING)
            wait_until(lambda before=before: gateway.gateway.counts.commands == before + 2)  # type: ignore[misc]
        client.socket.sendall(b"\xff" * 16)
        wait_until(lambda: gateway.gateway.counts.dropped)
        wait_until(lambda: transport.get_extra_info("socket").fileno() < 0, "the socket is closed")


def test_a_client_that_goes_is_not_kept_by_what_it_asked_the_server_for(
    gateway: RunningGateway, database: Database[dict[str, Any]]
) -> None:
    database.create_collection("log", capped=True, size=4096)
    database.log.insert_one({})
    with WireClient(gateway.port) as client:
        find = {"find": "log", "tailable": True, "awaitData": True, "$db": database.name}
        cursor = client.command(find)["cursor"]["id"]
        before = gateway.gateway.counts.passed
        client.send({"getMore": cursor, "collection": "log", "maxTimeMS": 600_000, "$db": database.name})
        wait_until(lambda: gateway.gateway.counts.passed > before)
    wait_until(lambda: not gateway.gateway.counts.connections)
    database.drop_collection("log")


def test_a_server_that_falls_silent_holds_nobody_for_ever(
    mongodb: ReplicaSet,
    start_gateway: Callable[..., RunningGateway],
    fault_proxy: Callable[[int], FaultProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handshake of all clients is asked on one connection, and one at a time."""
    gateway = start_gateway(mongodb.uri)
    proxy = fault_proxy(mongodb.primary.port)

    async def by_proxy() -> tuple[str, int]:
        return "127.0.0.1", proxy.port

    hello = {"hello": 1, "$db": "admin"}
    monkeypatch.setattr(gateway.gateway.upstream, "_primary", by_proxy)
    with WireClient(gateway.port) as client:
        assert client.command(hello)["ok"] == 1
    monkeypatch.setattr(upstream, "_SECONDS_FOR_AN_ANSWER", 0.5)
    monkeypatch.setattr(upstream, "_SECONDS_TO_REMEMBER", 0.0)
    proxy.black_hole()
    with WireClient(gateway.port) as client, pytest.raises(ConnectionError):
        client.command(hello)
    proxy.heal()
    monkeypatch.setattr(upstream, "_SECONDS_FOR_AN_ANSWER", 15.0)
    with WireClient(gateway.port) as client:
        assert client.command(hello)["ok"] == 1
