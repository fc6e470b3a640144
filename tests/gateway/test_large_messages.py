"""Large messages pass through in pieces: nobody waits for copies, and who does not take a reply holds little of it."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import bson
import pytest
from bson import Int64
from pymongo.collection import Collection
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient
from tailrace.gateway.wire import OP_COMPRESSED, OP_MSG, message_in
from tailrace.stand import ReplicaSet
from waiting import wait_until

MB = 1024 * 1024
PADDING = os.urandom(3_500_000)


class Peak:
    bytes = 0


@contextmanager
def _memory() -> Iterator[Peak]:
    """How much more memory Python has had during the block."""
    peak = Peak()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield peak
    finally:
        peak.bytes = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()


def _insert(count: int, *, in_body: bool) -> bytes:
    documents = [{"_id": number, "x": PADDING} for number in range(count)]
    command = {"insert": "large", "$db": "local"}
    if in_body:
        payload = b"\x00" * 5 + bson.encode(command | {"documents": documents})
    else:
        section = b"documents\x00" + b"".join(map(bson.encode, documents))
        payload = b"\x00" * 5 + bson.encode(command) + b"\x01" + struct.pack("<i", 4 + len(section)) + section
    return struct.pack("<iiii", 16 + len(payload), 1, 0, OP_MSG) + payload


@pytest.fixture
def large(mongodb: ReplicaSet) -> Iterator[Collection[dict[str, Any]]]:
    """A collection in `local`, which is not in the oplog: the hub does not read it too."""
    with mongodb.client(retryWrites=False) as direct:
        yield direct.local.large
        direct.local.drop_collection("large")


@pytest.mark.parametrize("in_body", [False, True], ids=["in a sequence", "in the body"])
def test_a_large_request_is_not_copied(
    gateway: RunningGateway, large: Collection[dict[str, Any]], in_body: bool
) -> None:
    count = 4 if in_body else 10
    frame = _insert(count, in_body=in_body)
    with WireClient(gateway.port) as client:
        client.command({"ping": 1, "$db": "admin"})
        with _memory() as peak:
            client.socket.sendall(frame)
            reply = client.reply()
    assert (reply["ok"], reply["n"]) == (1, count)
    assert [each["x"] == PADDING for each in large.find()] == [True] * count
    assert len(frame) <= peak.bytes < len(frame) * 1.5  # a buffer that grows has some to spare


@pytest.mark.usefixtures("large")
def test_a_large_message_and_what_comes_behind_it_are_told_apart(gateway: RunningGateway) -> None:
    ping = b"\x00" * 5 + bson.encode({"ping": 1, "$db": "admin"})
    behind = struct.pack("<iiii", 16 + len(ping), 2, 0, OP_MSG) + ping
    with WireClient(gateway.port) as client:
        client.socket.sendall(_insert(1, in_body=False) + behind * 3)
        assert [client.reply().get("n") for _ in range(4)] == [1, None, None, None]


def test_a_message_is_the_same_from_a_bytearray() -> None:
    for in_body in (False, True):
        frame = _insert(1, in_body=in_body)
        assert message_in(bytearray(frame)) == message_in(frame)  # type: ignore[arg-type]


def test_clients_that_do_not_take_their_large_replies_hold_little_of_them(
    gateway: RunningGateway, large: Collection[dict[str, Any]]
) -> None:
    large.insert_many([{"_id": number, "x": PADDING} for number in range(4)])
    find = {"find": "large", "$db": "local"}
    with ExitStack() as opened:
        clients = [opened.enter_context(WireClient(gateway.port)) for _ in range(4)]
        with _memory() as peak:
            for client in clients:
                client.send(find)
            wait_until(lambda: sum(_unsent(each) > 0 for each in gateway.gateway._clients) == len(clients))
        assert peak.bytes < 10 * MB
        for client in clients:
            assert [each["x"] == PADDING for each in client.reply()["cursor"]["firstBatch"]] == [True] * 4
            assert client.command({"ping": 1, "$db": "admin"})["ok"] == 1


def _unsent(connection: Any) -> int:
    return int(connection._transport.get_write_buffer_size())


def test_large_replies_that_are_compressed_share_a_budget(
    mongodb: ReplicaSet, large: Collection[dict[str, Any]], start_gateway: Callable[..., RunningGateway]
) -> None:
    """The compressed size stands first: such a reply has to be here whole, and others wait for their turn."""
    gateway = start_gateway(mongodb.uri, receive_bytes=20_000_000)
    large.insert_many([{"_id": number, "x": PADDING} for number in range(4)])
    content = b"\x00" * 5 + bson.encode({"find": "large", "$db": "local"})
    with ExitStack() as opened:
        clients = [opened.enter_context(WireClient(gateway.port)) for _ in range(2)]
        for client in clients:
            client.send_frame(struct.pack("<iiB", OP_MSG, len(content), 2) + zlib.compress(content), OP_COMPRESSED)
        replies = gateway.gateway.frames.replies
        wait_until(lambda: replies._waiting)
        assert 14_000_000 < replies.used < 20_000_000
        late = opened.enter_context(WireClient(gateway.port))
        assert late.command({"ping": 1, "$db": "admin"})["ok"] == 1
        while clients:
            ready = select.select([client.socket for client in clients], [], [], 60)[0]
            client = clients.pop(next(place for place, each in enumerate(clients) if each.socket in ready))
            found = client.packed_reply()["cursor"]["firstBatch"]
            assert [each["x"] == PADDING for each in found] == [True] * 4
        wait_until(lambda: replies.used == 0)


@pytest.mark.parametrize("served_by", ["server", "gateway"])
def test_those_who_read_slowly_keep_no_room_from_others(
    mongodb: ReplicaSet,
    database: Database[dict[str, Any]],
    start_gateway: Callable[..., RunningGateway],
    served_by: str,
) -> None:
    """A reply that is compressed has to be here whole. Who takes it a little at a time is dropped when others wait."""
    budget = {"server": 16 * MB, "gateway": 5 * MB}[served_by]
    gateway = start_gateway(mongodb.uri, receive_bytes=budget, seconds_for_a_message=3.0)
    collection = database.create_collection("c")
    start = database.client.admin.command("ping")["operationTime"]
    for number in range(3):
        collection.insert_one({"_id": number, "x": PADDING})
    asked: dict[str, Any] = {"find": "c", "$db": database.name}
    if served_by == "gateway":
        stage = {"$changeStream": {"startAtOperationTime": start}}
        asked = {"aggregate": "c", "pipeline": [stage], "cursor": {}, "$db": database.name}
    content = b"\x00" * 5 + bson.encode(asked)
    frame = struct.pack("<iiB", OP_MSG, len(content), 2) + zlib.compress(content)
    with WireClient(gateway.port) as slow, WireClient(gateway.port, source="127.0.0.2") as other:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.send_frame(frame, OP_COMPRESSED)
        wait_until(lambda: gateway.gateway.frames.replies.used)
        other.send_frame(frame, OP_COMPRESSED)
        is_done = threading.Event()
        reading = threading.Thread(target=_read_slowly, args=(slow, is_done))
        reading.start()
        try:
            found = other.packed_reply()
        finally:
            is_done.set()
            reading.join()
    assert found["cursor"]["firstBatch"][0]["_id"] is not None
    wait_until(lambda: gateway.gateway.frames.replies.used == 0)


def _read_slowly(client: WireClient, is_done: threading.Event) -> None:
    with suppress(OSError):
        while not is_done.wait(0.2) and client.socket.recv(16_384):
            continue


def test_a_client_is_dropped_by_what_the_server_has_not_taken_yet(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], start_gateway: Callable[..., RunningGateway]
) -> None:
    """What a client has sent counts until it is answered, not only until it is passed on."""
    gateway = start_gateway(mongodb.uri, receive_bytes=4 * MB)
    database.create_collection("log", capped=True, size=4096)
    database.log.insert_one({})
    with WireClient(gateway.port) as client, WireClient(gateway.port) as other:
        find = {"find": "log", "tailable": True, "awaitData": True, "$db": database.name}
        cursor = client.command(find)["cursor"]["id"]
        more = {"getMore": Int64(cursor), "collection": "log", "maxTimeMS": 600_000, "$db": database.name}
        before = gateway.gateway.frames.received.used
        client.send(more)
        wait_until(lambda: gateway.gateway.frames.received.used > before)
        with ExitStack() as opened:
            others = [opened.enter_context(WireClient(gateway.port)) for _ in range(3)]
            for each in others:
                each.socket.sendall(struct.pack("<i", 3 * MB) + bytes(2 * MB))
            wait_until(lambda: gateway.gateway.counts.dropped)
        assert other.command({"ping": 1, "$db": "admin"})["ok"] == 1
    wait_until(lambda: gateway.gateway.frames.received.used == 0)
