"""Writers that die in the middle of a save, disks that are full, and servers that restart."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Timestamp

from tailrace.capture.positions import Position, PositionStore
from tailrace.capture.positions.open import open_store
from tailrace.errors import LeaseHeld, StoreUnavailable
from tailrace.owned import GuardedProcess, end_with_parent
from tailrace.stand import Kafka, Postgres, Redis
from waiting import SECONDS

KILLS = 3
SAVE_FOREVER = """
import sys, bson
from bson import Timestamp
from tailrace.capture.positions import Position, open_store, this_process
with open_store(sys.argv[1]) as store:
    lease = store.acquire("orders", this_process(), seconds=600)
    at = store.load("orders")
    second = at.cluster_time.time if at else 0
    while True:
        second += 1
        token = bson.encode({"_data": f"82{second:08X}000000012B0229296E04" * 50})
        reason = "every fourth" if second % 4 == 0 else None
        lease = store.save(Position(token, Timestamp(second, 1)), lease, reason=reason)
        print(second, flush=True)
"""


def position(seconds: int, **parts: Any) -> Position:
    return Position(bson.encode({"_data": f"82{seconds:08X}000000012B0229296E04"}), Timestamp(seconds, 1), **parts)


def test_a_writer_killed_in_the_middle_of_saves_leaves_the_old_or_the_new_position(store_url: str) -> None:
    saved = 0
    for _ in range(KILLS):
        saved = kill_while_saving(store_url, saved)
    with open_store(store_url) as store:
        noted = [change.position for change in reversed(store.history("orders", 10_000)) if change.what == "moved"]
    seconds = [position.cluster_time.time for position in noted if position]
    if store_url.startswith("file:"):  # whose trail is written ahead: a crash may leave a line too many
        assert len(seconds) - len(set(seconds)) < KILLS
        seconds = sorted(set(seconds))[: saved // 4]
    assert seconds == list(range(4, saved + 1, 4))


def kill_while_saving(store_url: str, saved: int) -> int:
    """Let a process save for a random while, kill it, and give what the store holds then."""
    writer = GuardedProcess([sys.executable, "-c", SAVE_FOREVER, store_url], stdout=subprocess.PIPE, text=True)
    assert writer.stdout
    try:
        for _ in range(random.randint(1, 12)):
            assert int(writer.stdout.readline()) == saved + 1
            saved += 1
        time.sleep(random.random() * 0.01)
    finally:
        writer.kill()
        acknowledged = [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        writer.wait(SECONDS)
        writer.stdout.close()
    last = acknowledged[-1] if acknowledged else saved
    with open_store(store_url) as store:
        held = store.load("orders")
        assert store.holder("orders") is None  # nobody need wait for a writer that is gone
    assert held
    assert held.cluster_time.time in (last, last + 1)
    assert held.token == bson.encode({"_data": f"82{held.cluster_time.time:08X}000000012B0229296E04" * 50})
    return held.cluster_time.time


@pytest.mark.parametrize("reason", [None, "asked for"])
def test_a_file_store_that_dies_before_any_system_call_is_whole(tmp_path: Path, reason: str | None) -> None:
    """Die at the 1st, 2nd, ... call that touches the disk, until a save goes through without dying."""
    for calls in range(1, 40):
        folder = tmp_path / str(calls)
        with open_store(f"file:{folder}") as store:
            lease = store.save(position(1), store.acquire("orders", "host/1"))
            child = os.fork()
            if child == 0:
                end_with_parent()
                die_at_call(calls)
                store.save(position(2), lease, reason=reason)
                os._exit(0)
            died = os.waitpid(child, 0)[1] != 0
        with open_store(f"file:{folder}") as again:
            held = again.load("orders")
            assert held
            assert held.cluster_time.time in (1, 2)
            history = again.history("orders")
            assert [change.why for change in history[-1:]] == ["start"]
            after = again.save(position(3), lease, reason="go on")
            assert again.history("orders")[0].why == "go on"
            assert after.epoch == lease.epoch
        if not died:
            assert held.cluster_time.time == 2
            assert calls > 8
            return
    pytest.fail("a save never went through")


def die_at_call(number: int) -> None:
    """Make the nth call that opens, writes, syncs, truncates or renames end the process instead."""
    left = [number]

    def counted(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def dying(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if name == "pwrite":  # half of the bytes are written
                    call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
                os._exit(9)
            return call(*arguments, **options)

        return dying

    for name in ("open", "pwrite", "fsync", "ftruncate", "truncate", "replace", "rename", "close"):
        setattr(os, name, counted(getattr(os, name), name))


@pytest.mark.parametrize("reason", [None, "asked for"])
def test_a_full_disk_keeps_the_old_position(tmp_path: Path, reason: str | None) -> None:
    with open_store(f"file:{tmp_path}") as store:
        lease = store.save(position(1), store.acquire("orders", "host/1"))
        large = position(2, shards={f"shard{number}": bson.encode({"_data": "82" * 100}) for number in range(50)})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(StoreUnavailable, match="File too large"):
                store.save(large, lease, reason=reason)
            held = store.load("orders")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert held
        assert held.cluster_time.time == 1
        assert [change.why for change in store.history("orders")] == ["start"]
        assert not list(tmp_path.glob("*.new"))
        store.save(large, lease, reason=reason)
        assert len(store.history("orders")) == (2 if reason else 1)


@pytest.mark.parametrize(
    "kind", [Postgres, Redis, pytest.param(Kafka, marks=pytest.mark.long)], ids=lambda kind: kind.name
)
def test_a_server_that_restarts_keeps_the_position_and_the_writer_goes_on(
    kind: Any, start_server: Callable[..., Any]
) -> None:
    """`pytest -m long` runs it with Kafka too."""
    server = start_server(kind)
    urls = {"postgres": lambda: server.dsn, "redis": lambda: server.url, "kafka": lambda: f"kafka://{server.address}"}
    with open_store(urls[kind.name]()) as store:
        lease = store.save(position(1), store.acquire("orders", "host/1", seconds=600))
        server.kill()
        if kind is not Kafka:  # whose client waits for a broker to come back
            with pytest.raises(StoreUnavailable):
                store.save(position(2), lease)
        server.restart()
        lease = save_when_back(store, position(3), lease)
        server.restart()
        save_when_back(store, position(4), lease)
        held = store.load("orders")
        assert held
        assert held.cluster_time.time == 4


def save_when_back(store: PositionStore, wanted: Position, lease: Any) -> Any:
    """Save, trying again while the server comes back, as a producer does."""
    deadline = time.monotonic() + 200
    while True:
        try:
            return store.save(wanted, lease)
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_a_postgresql_connection_that_died_while_idle_goes_unnoticed(start_server: Callable[..., Any]) -> None:
    server = start_server(Postgres)
    with open_store(server.dsn) as store:
        lease = store.acquire("orders", "host/1", seconds=600)
        server.restart()
        store.save(position(1), lease)


def test_a_mongodb_that_is_killed_keeps_the_position_and_the_writer_goes_on(start_mongodb: Callable[..., Any]) -> None:
    replica_set = start_mongodb()
    node = replica_set.primary
    with open_store(replica_set.uri) as store:
        lease = store.save(position(1), store.acquire("orders", "host/1", seconds=600))
        node.kill()
        node.restart()
        lease = save_when_back(store, position(2), lease)
        with open_store(replica_set.uri) as other, pytest.raises(LeaseHeld):
            other.acquire("orders", "host/2")
        held = store.load("orders")
        assert held
        assert held.cluster_time.time == 2
