"""Compressed and half-sent messages: small before a login, within a budget after it, and never on the event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import bson
import pytest
from bson import Int64
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from gateway.test_hostile_clients import is_dropped
from gateway.wire_client import WireClient
from tailrace.errors import BadFrame
from tailrace.gateway.compression import COMPRESSORS
from tailrace.gateway.connection import Connection
from tailrace.gateway.fairness import Fairness
from tailrace.gateway.frames import ByteBudget, Frames
from tailrace.gateway.wire import OP_COMPRESSED, OP_MSG, Message
from tailrace.stand import ReplicaSet
from waiting import wait_until

Document = dict[str, Any]
MB = 1024 * 1024


def frame(payload: bytes, opcode: int) -> bytes:
    return struct.pack("<iiii", 16 + len(payload), 1, 0, opcode) + payload


def packed(command: Document, *, said: int | None = None) -> bytes:
    """A command in a frame compressed with zlib, which may lie about its size."""
    content = b"\x00" * 5 + bson.encode(command)
    size = len(content) if said is None else said
    return frame(struct.pack("<iiB", OP_MSG, size, 2) + zlib.compress(content, 9), OP_COMPRESSED)


def ping(padding: int) -> Document:
    return {"ping": 1, "comment": "x" * padding, "$db": "admin"}


def test_before_a_login_messages_are_small_and_after_it_they_may_be_large(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(secured.uri)
    plain = b"\x00" * 5 + bson.encode(ping(100_000))
    for bomb in (packed(ping(100_000)), packed(ping(10 * MB)), frame(plain, OP_MSG)):
        assert is_dropped(gateway.port, bomb)
    assert is_dropped(gateway.port, packed(ping(10 * MB), said=1_000))
    with WireClient(gateway.port) as client:
        client.socket.sendall(packed(ping(30_000)))
        assert client.packed_reply()["ok"] == 1
        client.authenticate("ann", "secret")
        for large in (packed(ping(10 * MB)), frame(b"\x00" * 5 + bson.encode(ping(10 * MB)), OP_MSG)):
            client.socket.sendall(large)
            told = client.packed_reply() if large[12:16] == struct.pack("<i", OP_COMPRESSED) else client.reply()
            assert told["ok"] == 1


def test_where_nobody_logs_in_messages_are_as_large_as_they_say_and_may_be(
    mongodb: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(mongodb.uri, message_bytes=MB)
    plain = frame(b"\x00" * 5 + bson.encode(ping(2 * MB)), OP_MSG)
    for bomb in (packed(ping(2 * MB)), packed(ping(2 * MB), said=1_000), packed(ping(10), said=MB), plain):
        assert is_dropped(gateway.port, bomb)
    with WireClient(gateway.port) as client:
        client.socket.sendall(packed(ping(MB // 2)))
        assert client.packed_reply()["ok"] == 1
    wait_until(lambda: gateway.gateway.frames.unpacked.used == 0)


def test_unpacking_and_packing_leave_the_event_loop_alone() -> None:
    """Seen by the threads that do it."""
    seen: list[str] = []
    method = COMPRESSORS[2]

    class Noting:
        name, number = method.name, method.number

        def compress(self, data: bytes) -> bytes:
            seen.append(threading.current_thread().name)
            return method.compress(data)

    async def run() -> None:
        frames = Frames(100 * MB, lambda: None)
        message, taken = await frames.open(packed(ping(MB)), 48 * MB, 5)
        assert taken > MB
        assert len(message.body) > MB
        assert frames.unpacked.used == taken
        answered = Message(message.body, compressor=Noting())  # type: ignore[arg-type]
        await frames.pack(answered, [b"x" * MB])
        await frames.pack(answered, [b"x"])
        small, taken = await frames.open(packed(ping(10)), 48 * MB, 5)
        assert (taken, small.compressor) == (0, method)
        frames.close()

    asyncio.run(run())
    assert seen[0].startswith("gateway-frames")
    assert not seen[1].startswith("gateway-frames")


def test_messages_wait_for_room_to_be_unpacked_and_are_refused_when_none_comes() -> None:
    async def run() -> None:
        frames = Frames(3 * MB, lambda: None)
        _, taken = await frames.open(packed(ping(2 * MB)), 48 * MB, 5)
        waiting = asyncio.create_task(frames.open(packed(ping(2 * MB)), 48 * MB, 60))
        with pytest.raises(BadFrame, match="no room"):
            await frames.open(packed(ping(2 * MB)), 48 * MB, 0.05)
        assert not waiting.done()
        frames.unpacked.give(taken)
        _, taken = await waiting
        frames.unpacked.give(taken)
        with pytest.raises(BadFrame):
            await frames.open(packed(ping(2 * MB), said=2 * MB), 48 * MB, 5)
        assert frames.unpacked.used == 0
        frames.close()

    asyncio.run(run())


def test_a_budget_is_given_in_turn_and_survives_those_who_leave() -> None:
    async def run() -> None:
        budget = ByteBudget(10)
        await budget.reserve(50)  # alone, even more than there is
        turns = [asyncio.create_task(budget.reserve(size)) for size in (6, 6, 4, 1)]
        await asyncio.sleep(0)
        turns[0].cancel()
        await asyncio.sleep(0)
        budget.give(50)
        await asyncio.gather(turns[1], turns[2])
        assert budget.used == 10
        assert not turns[3].done()
        budget.give(6)
        await turns[3]
        assert budget.used == 5

    asyncio.run(run())


def test_a_budget_is_given_by_owner_in_turn_and_nobody_has_more_than_half_while_others_wait() -> None:
    async def run() -> None:
        budget = ByteBudget(10)
        eve = [asyncio.create_task(budget.reserve(4, "eve")) for _ in range(6)]
        await asyncio.sleep(0)
        assert [each.done() for each in eve] == [True, True, False, False, False, False]
        ben = asyncio.create_task(budget.reserve(4, "ben"))
        await asyncio.sleep(0)
        assert not ben.done()
        budget.give(4, "eve")
        await ben
        assert budget.used == 8
        budget.give(4, "ben")
        await eve[2]
        assert not eve[3].done()
        for each in eve[3:]:
            each.cancel()
        budget.give(8, "eve")
        assert (budget.used, dict(budget._reserved)) == (0, {})

    asyncio.run(run())


def test_half_messages_count_and_who_holds_most_is_dropped(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Database[Document]
) -> None:
    gateway = start_gateway(mongodb.uri, receive_bytes=20 * MB)
    database.create_collection("c")
    half = struct.pack("<iiii", 40 * MB, 1, 0, OP_MSG)
    with (
        gateway.client() as client,
        client[database.name].c.watch() as stream,
        WireClient(gateway.port) as small,
    ):
        small.socket.sendall(half + b"x" * 2 * MB)
        assert is_dropped(gateway.port, half + b"x" * 30 * MB)
        database.c.insert_one({"_id": 1})
        assert next(stream)["documentKey"] == {"_id": 1}
        wait_until(lambda: gateway.gateway.frames.received.used == 2 * MB + 16)
    assert gateway.gateway.counts.dropped >= 1


def test_bytes_of_who_is_dropped_are_free_at_once() -> None:
    """Not only when the client has gone, which it may leave open: meanwhile others would be dropped in its place."""

    async def run() -> None:
        frames = Frames(10 * MB, lambda: None)
        ours, theirs = socket.socketpair()
        connection = Connection(
            lambda _: None, frames, Fairness(lambda: None), largest=MB, seconds=60, is_stranger=False, tls=None
        )
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: connection, sock=ours)
        theirs.sendall(struct.pack("<iiii", MB, 1, 0, OP_MSG) + b"x" * 1_000)
        while frames.received.used < 1_016:
            await asyncio.sleep(0.01)
        connection.drop("enough")
        assert frames.received.used == 0
        transport.abort()
        theirs.close()
        frames.close()

    asyncio.run(run())


def test_whole_messages_before_a_bad_one_are_answered(gateway: RunningGateway) -> None:
    with WireClient(gateway.port) as client:
        good = frame(b"\x00" * 5 + bson.encode({"ping": 1, "$db": "admin"}), OP_MSG)
        client.socket.sendall(good * 2 + b"\xff" * 16)
        assert [client.reply()["ok"], client.reply()["ok"]] == [1, 1]
        with pytest.raises(ConnectionError):
            client.reply()


def test_a_client_that_sends_far_ahead_waits_and_gets_all_its_answers(gateway: RunningGateway) -> None:
    good = frame(b"\x00" * 5 + bson.encode(ping(300_000)), OP_MSG)
    with WireClient(gateway.port) as client:
        sender = threading.Thread(target=client.socket.sendall, args=(good * 40,))
        sender.start()
        assert [client.reply()["ok"] for _ in range(40)] == [1] * 40
        sender.join()
    wait_until(lambda: gateway.gateway.frames.received.used == 0)


@pytest.mark.parametrize(("padding", "count", "most"), [(900_000, 20, 2 * MB), (10, 40_000, MB // 2)])
def test_what_a_client_sends_ahead_is_bounded(
    gateway: RunningGateway, database: Database[Document], padding: int, count: int, most: int
) -> None:
    """By bytes where its messages are large, and by their number where they are small: they are not read any more."""
    good = frame(b"\x00" * 5 + bson.encode(ping(padding)), OP_MSG)
    with WireClient(gateway.port) as client:
        opened = client.command(
            {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": database.name}
        )
        cursor = Int64(opened["cursor"]["id"])
        client.send({"getMore": cursor, "collection": "c", "maxTimeMS": 10_000_000, "$db": database.name})
        client.socket.settimeout(2.0)
        with suppress(TimeoutError):
            for _ in range(count // 10):
                client.socket.sendall(good * 10)
        assert 0 < gateway.gateway.frames.received.used < most


def test_a_client_that_goes_while_much_of_it_waits_is_noticed(
    gateway: RunningGateway, database: Database[Document]
) -> None:
    """Behind a getMore that waits for hours nobody reads on, and so nobody would see the end."""
    with WireClient(gateway.port) as client:
        opened = client.command(
            {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": database.name}
        )
        cursor = Int64(opened["cursor"]["id"])
        client.send({"getMore": cursor, "collection": "c", "maxTimeMS": 10_000_000, "$db": database.name})
        for _ in range(10):
            client.send({"ping": 1, "$db": "admin"})
    deadline = time.monotonic() + 200
    while gateway.gateway.counts.connections:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    wait_until(lambda: gateway.gateway.frames.received.used == 0)
