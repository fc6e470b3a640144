"""The ways to read loaded events that run in a Python process: ours, pymongo's, and loops that look at nothing.

Each function reads `events` events of one collection from a time on; see `bench.child` for how they are called.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import bson
from bson import Timestamp
from pymongo import AsyncMongoClient, MongoClient

from bench.child import Marks
from tailrace.driver import watch
from tailrace.engine.live import watch_oplog
from tailrace.oplog.tail import read_batch

_EXHAUST_ALLOWED = 1 << 16
_MORE_TO_COME = 1 << 1
_HEADER = struct.Struct("<iiiiI")


class RawSocket:
    """A connection that looks at nothing but where a reply ends."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, document: dict[str, Any], flags: int = 0) -> None:
        """Send a command."""
        body = bson.encode(document)
        self._socket.sendall(_HEADER.pack(21 + len(body), 1, 0, 2013, flags) + b"\0" + body)

    def receive(self) -> tuple[int, bytearray]:
        """The flags and the body of the next reply."""
        size, _, _, _, flags = _HEADER.unpack(self._read(20))
        return flags, self._read(size - 20)

    def command(self, document: dict[str, Any]) -> dict[str, Any]:
        """Send a command and decode its reply."""
        self.send(document)
        reply: dict[str, Any] = bson.decode(bytes(self.receive()[1][1:]))
        if not reply["ok"]:
            raise RuntimeError(str(reply))
        return reply

    def _read(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view, got = memoryview(buffer), 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if not count:
                raise RuntimeError("the server hung up")
            got += count
        return buffer

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class _Counted:
    """How many events each reply holds: the first run cuts them, later ones know, and only read.

    The loaded events do not change, and so the replies do not.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []

    def sizes(self, replies: Iterator[bytearray]) -> Iterator[int]:
        for number, body in enumerate(replies):
            if number == len(self._sizes):
                self._sizes.append(len(read_batch(bytes(body[1:])).entries))
            yield self._sizes[number]


class RawLoop:
    """A getMore loop on a bare socket: what the server's own change stream allows at most."""

    def __init__(
        self,
        uri: str,
        start: list[int],
        events: int,
        port: int | None = None,
        pipeline: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._port = port or _port_of(uri)
        self._stages = [{"$changeStream": {"startAtOperationTime": Timestamp(*start)}}, *pipeline]
        self._counted = _Counted()

    def run(self, marks: Marks) -> None:
        """Read all events once."""
        connection = RawSocket(self._port)
        marks.begin()
        opening = {"aggregate": "orders", "pipeline": self._stages, "cursor": {"batchSize": 0}, "$db": "bench"}
        cursor = connection.command(opening)["cursor"]["id"]
        more = {"getMore": cursor, "collection": "orders", "$db": "bench"}

        def replies() -> Iterator[bytearray]:
            while True:
                connection.send(more)
                yield connection.receive()[1]

        for size in self._counted.sizes(replies()):
            if marks.add(size):
                break
        connection.close()


class OplogScan:
    """The oplog through an exhaust cursor on a bare socket, majority read concern: the physical limit."""

    def __init__(self, uri: str, start: list[int], events: int) -> None:
        self._port = _port_of(uri)
        self._start = Timestamp(*start)
        self._counted = _Counted()

    def run(self, marks: Marks) -> None:
        """Read all entries once."""
        connection = RawSocket(self._port)
        marks.begin()
        query = {
            "find": "oplog.rs",
            "filter": {"ts": {"$gte": self._start}, "op": {"$ne": "n"}},
            "batchSize": 0,
            "readConcern": {"level": "majority"},
            "$db": "local",
        }
        cursor = connection.command(query)["cursor"]["id"]
        connection.send({"getMore": cursor, "collection": "oplog.rs", "$db": "local"}, _EXHAUST_ALLOWED)

        def replies() -> Iterator[bytearray]:
            flags = _MORE_TO_COME
            while flags & _MORE_TO_COME:
                flags, body = connection.receive()
                yield body

        for size in self._counted.sizes(replies()):
            if marks.add(size):
                break
        connection.close()


class GatewayLoop(RawLoop):
    """The same getMore loop, asking a gateway of its own."""

    def __init__(self, uri: str, start: list[int], events: int) -> None:
        self._gateway, port = start_gateway(uri)
        super().__init__(uri, start, events, port)


def start_gateway(uri: str) -> tuple[subprocess.Popen[str], int]:
    """Start `tailrace serve` at a free port; gives the process and the port."""
    from bench.contestant import end_with_parent

    command = [sys.executable, "-m", "tailrace.cli.app", "serve", "--uri", uri, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent)
    assert process.stdout
    return process, int(process.stdout.readline().rpartition(":")[2].strip().strip("/"))


@contextmanager
def connected(uri: str, marks: Marks) -> Iterator[MongoClient[Any]]:
    """A client that has found its server; the measuring begins then."""
    with MongoClient[Any](uri) as client:
        client.admin.command("ping")
        marks.begin()
        yield client


@asynccontextmanager
async def async_connected(uri: str, marks: Marks) -> AsyncIterator[AsyncMongoClient[Any]]:
    """The same, asynchronous."""
    async with AsyncMongoClient[Any](uri) as client:
        await client.admin.command("ping")
        marks.begin()
        yield client


def driver_batches(uri: str, start: list[int], events: int, marks: Marks) -> None:
    """Our driver, batches of raw events."""
    with (
        connected(uri, marks) as client,
        watch(client.bench.orders, start_at_operation_time=Timestamp(*start)) as stream,
    ):
        for batch in stream.batches():
            if marks.add(len(batch.events)):
                break


def driver_decoded(uri: str, start: list[int], events: int, marks: Marks) -> None:
    """Our driver, events as dictionaries."""
    with (
        connected(uri, marks) as client,
        watch(client.bench.orders, start_at_operation_time=Timestamp(*start)) as stream,
    ):
        for _ in range(events):
            next(stream)
        marks.reach(events)


def pymongo_watch(uri: str, start: list[int], events: int, marks: Marks, batch_size: int | None = None) -> None:
    """pymongo's own `watch()`."""
    with (
        connected(uri, marks) as client,
        client.bench.orders.watch(start_at_operation_time=Timestamp(*start), batch_size=batch_size) as stream,
    ):
        for _ in range(events):
            next(stream)
        marks.reach(events)


def driver_async(uri: str, start: list[int], events: int, marks: Marks) -> None:
    """Our asynchronous driver, events as dictionaries."""

    async def drain() -> None:
        async with (
            async_connected(uri, marks) as client,
            watch(client.bench.orders, start_at_operation_time=Timestamp(*start)) as stream,
        ):
            for _ in range(events):
                await stream.next()
            marks.reach(events)

    asyncio.run(drain())


def pymongo_async(uri: str, start: list[int], events: int, marks: Marks) -> None:
    """pymongo's own asynchronous `watch()`."""

    async def drain() -> None:
        async with (
            async_connected(uri, marks) as client,
            await client.bench.orders.watch(start_at_operation_time=Timestamp(*start)) as stream,
        ):
            for _ in range(events):
                await stream.next()
            marks.reach(events)

    asyncio.run(drain())


def engine(uri: str, start: list[int], events: int, marks: Marks, pipeline: list[Any] | None = None) -> None:
    """Our engine: the same stream, made from the oplog."""
    with (
        connected(uri, marks) as client,
        watch_oplog(client.bench.orders, pipeline or [], start_at_operation_time=Timestamp(*start)) as stream,
    ):
        for batch in stream.batches():
            if marks.add(len(batch.found)):
                break


def engine_whole_cluster(uri: str, start: list[int], events: int, marks: Marks, size: int = 10_000) -> None:
    """Our engine over everything in bounded batches, for what it holds in memory."""
    with (
        connected(uri, marks) as client,
        watch_oplog(client, start_at_operation_time=Timestamp(*start), batch_size=size) as stream,
    ):
        for batch in stream.batches():
            if marks.add(len(batch.found)):
                break


def _port_of(uri: str) -> int:
    return int(uri.split("//")[1].split("/")[0].split(",")[0].rpartition(":")[2])
