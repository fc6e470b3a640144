"""A watcher with a bare connection, as cheap as one can be: one process plays thousands of them."""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import bson


class BareWatcher(asyncio.BufferedProtocol, ABC):
    """Opens a change stream, takes each reply where it lies, and asks for the next."""

    def __init__(
        self, database: str, collection: str, opened: Callable[[], None], *, await_ms: int, buffer_bytes: int
    ) -> None:
        self._database, self._collection, self._opened, self._await_ms = database, collection, opened, await_ms
        self._buffer = bytearray(buffer_bytes)
        self._have = 0
        self._more = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open a change stream."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        command = {"aggregate": self._collection, "pipeline": [{"$changeStream": {}}], "cursor": {}}
        transport.write(frame(command, self._database))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Give what is free of the buffer."""
        return memoryview(self._buffer)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the reply once it is complete."""
        self._have += nbytes
        size = int.from_bytes(self._buffer[:4], "little") if self._have >= 4 else 4
        if size > len(self._buffer):
            self._buffer = self._buffer[: self._have] + bytes(size - self._have)
        if self._have < size or self._have < 4:
            return
        if self._more:
            self._take(self._buffer, size)
        else:
            self._begin(bson.decode(self._buffer[21:size]))
        self._have = 0
        self._transport.write(self._more)

    def _begin(self, reply: dict[str, Any]) -> None:
        """Take the reply that opens the stream."""
        more = {"getMore": reply["cursor"]["id"], "collection": self._collection, "maxTimeMS": self._await_ms}
        self._more = frame(more, self._database)
        self._opened()

    @abstractmethod
    def _take(self, reply: bytearray, size: int) -> None:
        """Take one later reply: the first `size` bytes."""


def frame(command: dict[str, Any], database: str) -> bytes:
    """Give a command as it is sent."""
    body = bson.encode(command | {"$db": database})
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body
