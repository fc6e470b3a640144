"""N watchers of one collection, on the server itself or on a gateway, while a writer writes as fast as it can.

A server-side cursor costs mongod for every insert and every watcher; the gateway reads the oplog once for all. What is
measured is what the writer gets, what an insert costs mongod, and what is delivered. One process plays all
watchers, with bare connections.

    python -m bench.watchers PORT COUNT [USER PASSWORD]

plays the watchers, each of whom logs in if a user is given, and prints how many events came for each line it reads.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import signal
import socket
import struct
import sys
import time
from base64 import b64decode, b64encode
from functools import cache
from pathlib import Path
from typing import Any

import bson
from pymongo import WriteConcern

from bench.accounting import Meter, cpu_seconds, peak_mb, tree_of
from bench.bare_watcher import BareWatcher, frame
from bench.contestant import Contestant, ContestantFailed, LineProcess, file_name
from bench.drain_jobs import start_gateway
from tailrace.stand import ReplicaSet

_PADDING = "x" * 200
_SECONDS_TO_OPEN = 60.0


class Watchers(Contestant):
    """So many watchers at one port."""

    def __init__(
        self,
        name: str,
        upstream: ReplicaSet,
        count: int,
        seconds: float,
        *,
        by_gateway: bool,
        user: tuple[str, ...] = (),
    ) -> None:
        """`user` is a name and a password with which each of them logs in."""
        super().__init__(name, peer=False, settings={"watchers": count})
        self._upstream = upstream
        self._count = count
        self._writing = seconds
        self._by_gateway = by_gateway
        self._gateway: Any = None
        self._port = 0
        self._user = user
        self._folder: Path

    def launch(self, folder: Path) -> None:
        """Start the gateway, if that is what is asked."""
        self._folder = folder
        if self._by_gateway:
            self._gateway, self._port = start_gateway(self._upstream.uri)
        else:
            self._port = self._upstream.primary.port

    def run(self, meter: Meter) -> dict[str, float]:
        """Open the watchers, write for some seconds, and count."""
        log = self._folder / f"{file_name(self.name)}.log"
        command = [sys.executable, "-m", "bench.watchers", str(self._port), str(self._count), *self._user]
        players = LineProcess(command, log)
        try:
            players.wait_for("open", _SECONDS_TO_OPEN)
            return self.measure(players)
        finally:
            players.close()

    @property
    def processes(self) -> tuple[int, list[int]]:
        """The server's process, and the gateway's if there is one."""
        return self._upstream.primary.pid, [self._gateway.pid] if self._gateway else []

    def measure(self, players: LineProcess) -> dict[str, float]:
        """Write for some seconds, and count."""
        server, gateway = self.processes
        with self._upstream.client() as client:
            orders = client.bench.get_collection("watched", write_concern=WriteConcern(1))
            used, own = cpu_seconds(server), sum(map(cpu_seconds, gateway))
            began, inserts = time.monotonic(), 0
            while time.monotonic() - began < self._writing:
                orders.insert_many([{"customer": inserts, "padding": _PADDING} for _ in range(10)])
                inserts += 10
            took = time.monotonic() - began
        players.tell("count")
        delivered = int(players.wait_for("delivered", 30))
        found = {
            "inserts": inserts / took,
            "delivered": delivered / took,
            "mongod_us": (cpu_seconds(server) - used) / inserts * 1e6,
        }
        if gateway:
            found["tool_us"] = (sum(map(cpu_seconds, gateway)) - own) / inserts * 1e6
            found["peak_mb"] = peak_mb(tree_of(gateway[0]))
        if not delivered:
            raise ContestantFailed("no event was delivered")
        return found

    def close(self) -> None:
        """End the gateway."""
        if self._gateway is not None:
            self._gateway.terminate()
            try:
                self._gateway.wait(15)
            finally:
                self._gateway.kill()
            self._gateway = None


class _Watcher(BareWatcher):
    """Counts the events of the replies."""

    delivered = 0
    """Of all of them."""

    def _take(self, reply: bytearray, size: int) -> None:
        _Watcher.delivered += reply.count(b"\x03documentKey\x00", 0, size)


@cache
def _salted(password: str, salt: str, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), b64decode(salt), iterations)


def _log_in(peer: socket.socket, user: str, password: str) -> None:
    """Speak SCRAM-SHA-256."""

    def ask(command: dict[str, Any]) -> dict[str, Any]:
        peer.sendall(frame(command, "admin"))
        (size,) = struct.unpack("<i", peer.recv(4, socket.MSG_WAITALL))
        told: dict[str, Any] = bson.decode(peer.recv(size - 4, socket.MSG_WAITALL)[17:])
        if told["ok"] != 1:
            raise ContestantFailed(str(told))
        return told

    first = f"n={user},r={b64encode(secrets.token_bytes(24)).decode()}"
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,{first}".encode()}
    told = ask(start | {"options": {"skipEmptyExchange": True}})
    challenge = told["payload"].decode()
    parts = dict(part.split("=", 1) for part in challenge.split(","))
    key = hmac.digest(_salted(password, parts["s"], int(parts["i"])), b"Client Key", "sha256")
    last = f"c=biws,r={parts['r']}"
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{first},{challenge},{last}".encode(), "sha256")
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    ask({"saslContinue": 1, "conversationId": told["conversationId"], "payload": f"{last},p={proof}".encode()})


async def _play(port: int, count: int, user: list[str]) -> None:
    loop = asyncio.get_running_loop()
    opened: asyncio.Queue[None] = asyncio.Queue()

    def watcher() -> _Watcher:
        return _Watcher("bench", "watched", lambda: opened.put_nowait(None), await_ms=500, buffer_bytes=1 << 16)

    for _ in range(count):
        peer = socket.create_connection(("127.0.0.1", port))
        if user:
            _log_in(peer, *user)
        peer.setblocking(False)
        await loop.create_connection(watcher, sock=peer)
    for _ in range(count):
        await opened.get()
    print("@open", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(f"@delivered {_Watcher.delivered}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(_play(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
