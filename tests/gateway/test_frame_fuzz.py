"""Mutated frames and commands, authenticated and not, beside a watcher who must lose nothing.

`make fuzz-gateway` sends a million of them to a gateway in a process of its own: `test_frame_flood.py`.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.attackers import USERS, Attacker
from gateway.running_gateway import RunningGateway
from gateway.test_many_watchers import resident_bytes
from tailrace.stand import ReplicaSet
from waiting import SECONDS

FRAMES = 3_000
SEED = 1


class Watcher(threading.Thread):
    """Sees every document that it inserts, in order."""

    def __init__(self, gateway: RunningGateway, upstream: ReplicaSet) -> None:
        super().__init__(daemon=True)
        self._gateway = gateway
        self._upstream = upstream
        self.is_done = threading.Event()
        self.seen: list[int] = []
        self.written = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with (
                self._upstream.client() as root,
                self._gateway.client(username="ben", password="secret") as client,
                client.pub.watched.watch() as stream,
            ):
                while not self.is_done.is_set():
                    root.pub.watched.insert_one({"n": self.written})
                    self.written += 1
                    self.seen.append(next(stream)["fullDocument"]["n"])
                    time.sleep(0.01)
        except BaseException as error:
            self.failed = error


def test_mutated_frames_cost_nobody_else_anything(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway], capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"streams_per_user": 20, "cursor_timeout": 2.0, "access_log": False}
    options |= {"login_attempts": 0, "test_commands": False}
    gateway = start_gateway(secured.uri, **options)
    watcher = Watcher(gateway, secured)
    watcher.start()
    attackers = [Attacker(gateway.port, SEED * 1_000 + number, user) for number, user in enumerate(USERS)]
    for attacker in attackers:
        attacker.start()
    before = 0
    counts = gateway.gateway.counts
    while (handled := counts.commands + counts.dropped) < FRAMES:
        time.sleep(0.2)
        if not before and handled > FRAMES // 5:
            gc.collect()
            before = resident_bytes()
        assert watcher.failed is None, watcher.failed
        assert any(attacker.is_alive() for attacker in attackers)
    for attacker in attackers:
        attacker.is_done.set()
    for attacker in attackers:
        attacker.join(SECONDS)
    assert not any(attacker.died for attacker in attackers)
    watcher.is_done.set()
    watcher.join(SECONDS)
    gc.collect()
    grown = resident_bytes() - (before or resident_bytes())
    written = "".join(capfd.readouterr())
    assert watcher.failed is None
    assert watcher.seen == list(range(watcher.written))
    assert "Traceback" not in written
    assert counts.failed == 0
    assert grown < 64_000_000
    assert len(written) < 50_000 + FRAMES * 2
    deadline = time.monotonic() + 200
    while counts.connections or gateway.gateway.frames.received.used:
        assert time.monotonic() < deadline, (counts.connections, gateway.gateway.frames.received.used)
        time.sleep(0.05)
