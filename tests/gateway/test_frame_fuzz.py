"""Mutated frames and commands, authenticated and not, beside a watcher who must lose nothing.

`make fuzz-gateway FRAMES=1000000 SEED=1` is the long form.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions

from gateway.frame_mutations import OP_MSG, Mutations, frame
from gateway.running_gateway import RunningGateway
from gateway.test_many_watchers import resident_bytes
from gateway.wire_client import WireClient
from tailrace.stand import ReplicaSet

FRAMES = int(os.environ.get("FRAMES", "3000"))
SEED = int(os.environ.get("SEED", "1"))
BURST = 40
SECONDS_TO_ANSWER = 1.0
"""Some frames ask to wait for weeks, and may."""
SENTINEL = 0x5EED
_ANY_TEXT: CodecOptions[dict[str, Any]] = CodecOptions(unicode_decode_error_handler="replace")
PING = frame(b"\x00" * 5 + bson.encode({"ping": 1, "$db": "admin"}), SENTINEL)


class Attacker(threading.Thread):
    """Sends bursts of mutated frames, and reads until the ping behind each is answered or the gateway hangs up."""

    def __init__(self, port: int, seed: int, user: str | None) -> None:
        super().__init__(daemon=True)
        self.is_done = threading.Event()
        self._port = port
        self._user = user
        self._mutations = Mutations(seed)
        self._client: WireClient | None = None
        self.bursts = self.answered = self.hung_up = self.stuck = 0

    def run(self) -> None:
        try:
            while not self.is_done.is_set():
                self._burst()
        finally:
            self._hang_up()

    def _burst(self) -> None:
        """Every fourth burst ends with a frame that is broken."""
        client = self._connected()
        sent = [self._mutations.whole(number) for number in range(1, BURST)]
        self.bursts += 1
        if self.bursts % 4 == 0:
            sent.append(self._mutations.broken(BURST))
        sender = threading.Thread(target=_send, args=(client.socket, b"".join(sent) + PING), daemon=True)
        sender.start()
        try:
            while self._read_reply(client) != SENTINEL:
                self.answered += 1
        except TimeoutError:
            self.stuck += 1
            self._hang_up()
        except (ConnectionError, OSError):
            self.hung_up += 1
            self._hang_up()
        sender.join()

    def _connected(self) -> WireClient:
        if self._client is None:
            self._client = WireClient(self._port)
            self._client.socket.settimeout(30)
            if self._user is not None:
                self._client.authenticate(self._user, "secret")
            self._client.socket.settimeout(SECONDS_TO_ANSWER)
        return self._client

    def _read_reply(self, client: WireClient) -> int:
        head = client.exactly(16)
        length, _, response_to, opcode = struct.unpack("<iiii", head)
        payload = client.exactly(length - 16)
        if opcode == OP_MSG and b"cursor\x00" in payload[:40]:
            told = bson.decode(payload[5:], _ANY_TEXT)  # a server repeats what is no UTF-8
            if told.get("ok") == 1 and told["cursor"]["id"]:
                self._mutations.cursors = [*self._mutations.cursors[-20:], told["cursor"]["id"]]
        return int(response_to)

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.socket.close()
            self._client = None


def _send(peer: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        peer.sendall(data)


class Watcher(threading.Thread):
    """Sees every document that it inserts, in order, and notes how long each took."""

    def __init__(self, gateway: RunningGateway, upstream: ReplicaSet) -> None:
        super().__init__(daemon=True)
        self._gateway = gateway
        self._upstream = upstream
        self.is_done = threading.Event()
        self.seen: list[int] = []
        self.written = 0
        self.delays: list[float] = []
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with (
                self._upstream.client() as root,
                self._gateway.client(username="ben", password="secret") as client,
                client.pub.watched.watch() as stream,
            ):
                while not self.is_done.is_set():
                    begun = time.monotonic()
                    root.pub.watched.insert_one({"n": self.written})
                    self.written += 1
                    self.seen.append(next(stream)["fullDocument"]["n"])
                    self.delays.append(time.monotonic() - begun)
                    time.sleep(0.01)
        except BaseException as error:
            self.failed = error


@pytest.mark.timeout(7200)
def test_mutated_frames_cost_nobody_else_anything(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway], capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"streams_per_user": 20, "cursor_timeout": 2.0, "access_log": False}
    options |= {"login_attempts": 0, "test_commands": False}
    gateway = start_gateway(secured.uri, **options)
    watcher = Watcher(gateway, secured)
    watcher.start()
    users = (None, "ann") * 4
    attackers = [Attacker(gateway.port, SEED * 1_000 + number, user) for number, user in enumerate(users)]
    for attacker in attackers:
        attacker.start()
    before = 0
    counts = gateway.gateway.counts
    while (handled := counts.commands + counts.dropped) < FRAMES:
        time.sleep(0.2)
        if not before and handled > min(FRAMES // 5, 50_000):
            gc.collect()
            before = resident_bytes()
        assert watcher.failed is None, watcher.failed
        assert any(attacker.is_alive() for attacker in attackers)
    for attacker in attackers:
        attacker.is_done.set()
    for attacker in attackers:
        attacker.join(60)
    watcher.is_done.set()
    watcher.join(60)
    gc.collect()
    grown = resident_bytes() - (before or resident_bytes())
    written = "".join(capfd.readouterr())
    with capfd.disabled():
        delays = sorted(watcher.delays)
        p99 = delays[int(len(delays) * 0.99)]
        totals = {name: sum(getattr(each, name) for each in attackers) for name in ("answered", "hung_up", "stuck")}
        print(f"\n{totals}, {counts}")
        print(f"{len(watcher.seen)} events, p99 {p99 * 1000:.1f} ms, longest {delays[-1] * 1000:.1f} ms")
        print(f"{grown / 1e6:+.1f} MB, {len(written)} bytes of log, {gateway.gateway.log.left_out} lines left out")
        for line in sorted({line.partition("reason=")[2] for line in written.splitlines() if "command_failed" in line}):
            print(line)
    assert watcher.failed is None
    assert watcher.seen == list(range(watcher.written))
    assert "Traceback" not in written
    assert counts.failed == 0
    assert grown < 64_000_000
    assert len(written) < 50_000 + FRAMES * 2
    deadline = time.monotonic() + 60
    while counts.connections or gateway.gateway.frames.received.used:
        assert time.monotonic() < deadline, (counts.connections, gateway.gateway.frames.received.used)
        time.sleep(0.05)
