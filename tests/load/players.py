"""So many watchers in one process, with bare connections; each checks that it gets every number, in order, once.

    python -m load.players PORT DATABASE COLLECTIONS COUNT

opens COUNT change streams over the collections `c0` to `c<COLLECTIONS - 1>`, prints `@open`, and answers each line it
reads with what its watchers have.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import bson

_KEY = re.compile(rb"\x03documentKey\x00.{4}\x10_id\x00(.{4})\x00", re.DOTALL)


class Watcher(asyncio.BufferedProtocol):
    """One watcher: asks, checks the numbers of the reply where they lie, and asks again."""

    def __init__(self, database: str, collection: str, opened: Callable[[], None]) -> None:
        self._database, self._collection, self._opened = database, collection, opened
        self._buffer = bytearray(1 << 14)
        self._have = 0
        self._more = b""
        self.expected = 0
        """The number that comes next."""
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open a change stream."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        stage = {"$changeStream": {}}
        self._send({"aggregate": self._collection, "pipeline": [stage], "cursor": {}})

    def connection_lost(self, error: Exception | None) -> None:
        """Note it: none may be let go."""
        self.problem = self.problem or f"the connection was closed: {error}"

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
        if not self._more:
            self._begin(bson.decode(self._buffer[21:size]))
        else:
            self._take(size)
        self._have = 0
        self._transport.write(self._more)

    def _begin(self, reply: dict[str, Any]) -> None:
        if reply["ok"] != 1:
            self.problem = str(reply)[:300]
            return
        more = {"getMore": reply["cursor"]["id"], "collection": self._collection, "maxTimeMS": 5_000}
        self._more = _frame(more, self._database)
        self._opened()

    def _take(self, size: int) -> None:
        found = [int.from_bytes(match[1], "little") for match in _KEY.finditer(self._buffer, 0, size)]
        if found != list(range(self.expected, self.expected + len(found))):
            self.problem = self.problem or f"expected {self.expected}, got {found[:3]}"
        if not found and b"\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f" not in self._buffer[:size]:
            self.problem = self.problem or str(bson.decode(self._buffer[21:size]))[:300]
        self.expected += len(found)

    def _send(self, command: dict[str, Any]) -> None:
        self._transport.write(_frame(command, self._database))


def _frame(command: dict[str, Any], database: str) -> bytes:
    body = bson.encode(command | {"$db": database})
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


def _summary(watchers: list[Watcher], collections: int) -> str:
    """What they have: of each collection the least and the most, the problems, and when that was."""
    counts = [[each.expected for each in watchers[number::collections]] for number in range(collections)]
    found = {
        "least": [min(each) for each in counts],
        "most": [max(each) for each in counts],
        "delivered": sum(map(sum, counts)),
        "problems": [each.problem for each in watchers if each.problem][:5],
        "time": time.monotonic(),
    }
    return json.dumps(found)


async def _play(port: int, database: str, collections: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    opened: asyncio.Queue[None] = asyncio.Queue()
    watchers: list[Watcher] = []
    for number in range(count):
        peer = socket.create_connection(("127.0.0.1", port))
        peer.setblocking(False)
        watcher = Watcher(database, f"c{number % collections}", lambda: opened.put_nowait(None))
        watchers.append(watcher)
        await loop.create_connection(lambda watcher=watcher: watcher, sock=peer)
        if number % 100 == 99:
            await opened.get()
    for _ in range(count - count // 100):
        await opened.get()
    print("@open", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(f"@has {_summary(watchers, collections)}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(_play(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
