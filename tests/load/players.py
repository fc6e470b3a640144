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
import sys
import time
from typing import Any

import bson
from bench.bare_watcher import BareWatcher

_KEY = re.compile(rb"\x03documentKey\x00.{4}\x10_id\x00(.{4})\x00", re.DOTALL)


class Watcher(BareWatcher):
    """Checks the numbers of the replies."""

    expected = 0
    """The number that comes next."""
    problem = ""

    def connection_lost(self, error: Exception | None) -> None:
        """Note it: none may be let go."""
        self.problem = self.problem or f"the connection was closed: {error}"

    def _begin(self, reply: dict[str, Any]) -> None:
        if reply["ok"] == 1:
            super()._begin(reply)
        else:
            self.problem = str(reply)[:300]

    def _take(self, reply: bytearray, size: int) -> None:
        found = [int.from_bytes(match[1], "little") for match in _KEY.finditer(reply, 0, size)]
        if found != list(range(self.expected, self.expected + len(found))):
            self.problem = self.problem or f"expected {self.expected}, got {found[:3]}"
        if not found and b"\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f" not in reply[:size]:
            self.problem = self.problem or str(bson.decode(reply[21:size]))[:300]
        self.expected += len(found)


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
        watcher = Watcher(
            database,
            f"c{number % collections}",
            lambda: opened.put_nowait(None),
            await_ms=5_000,
            buffer_bytes=1 << 14,
        )
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
