"""When a lease ends, by which clock, and who may then write: over every store, with clocks that are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import bson
import psycopg
import pymongo
import pytest
import redis
from bson import Timestamp

from tailrace.capture.positions import Lease, Position, PositionStore, open_store
from tailrace.capture.positions.kafka import KafkaCells
from tailrace.capture.positions.leader import Leader
from tailrace.errors import LeaseHeld, LeaseLost
from tailrace.owned import GuardedProcess
from waiting import SECONDS

MINUTE_AHEAD: Callable[[], float] = lambda: time.time() + 60  # noqa: E731
MINUTE_BEHIND: Callable[[], float] = lambda: time.time() - 60  # noqa: E731

SAVE = """
import sys, time
from bson import Timestamp
from tailrace.capture.positions import Position, open_store, this_process
with open_store(sys.argv[1]) as store:
    lease = store.acquire("orders", this_process(), seconds=600)
    store.save(Position(None, Timestamp(1, 1)), lease, reason="here")
    print(time.localtime().tm_gmtoff, store.load("orders").saved_at.isoformat(), flush=True)
    input()
"""


def position(seconds: int) -> Position:
    return Position(bson.encode({"_data": f"82{seconds:08X}000000012B0229296E04"}), Timestamp(seconds, 1))


class Clocks:
    """Lets time pass for one store: by the clock of its server, and by those of the processes that watch it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened = ExitStack()
        self.now = 1_000.0
        self.tells_time = not url.startswith(("file:", "kafka:"))

    def store(self, wall_clock: Callable[[], float] = time.time) -> PositionStore:
        """Open the store as another process would, one whose wall clock may be wrong."""
        opened = self._opened.enter_context(open_store(self._url))
        made = PositionStore(opened.cells, wall_clock, lambda: self.now)
        if made.renewals is not None:
            self._opened.callback(made.renewals.close)
        return made

    def later(self, seconds: float, *, by_server: bool = True) -> None:
        """Let time pass; what the server wrote before becomes older by as much."""
        self.now += seconds
        if not by_server or not self.tells_time:
            return
        if self._url.startswith("postgresql:"):
            with psycopg.connect(self._url) as connection:
                query = "UPDATE tailrace_positions SET written_at = written_at - %s * interval '1 second'"
                connection.execute(query, (seconds,))
        elif self._url.startswith("mongodb:"):
            with pymongo.MongoClient[dict[str, Any]](self._url) as client:
                older = {"$subtract": ["$written.at", int(seconds * 1000)]}
                client.get_default_database()["positions"].update_many({}, [{"$set": {"written.at": older}}])
        else:
            with redis.Redis.from_url(self._url) as client:
                for key in client.scan_iter("{tailrace}:position-written:*"):
                    client.hincrby(key, "second", -int(seconds))

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def clocks(store_url: str) -> Iterator[Clocks]:
    opened = Clocks(store_url)
    yield opened
    opened.close()


def take_over(clocks: Clocks, challenger: PositionStore, after: float) -> Lease:
    """Let a silent holder's lease end; where the store tells no time, the challenger has to watch it first."""
    if not clocks.tells_time:
        with pytest.raises(LeaseHeld):
            challenger.acquire("orders", "host/2", seconds=10)
    clocks.later(after)
    return challenger.acquire("orders", "host/2", seconds=10)


def test_an_expired_lease_is_taken_over_and_its_writer_fenced(clocks: Clocks) -> None:
    first, second = clocks.store(), clocks.store()
    old = first.save(position(1), first.acquire("orders", "host/1", seconds=10))
    new = take_over(clocks, second, 10.5)
    assert new.epoch == old.epoch + 1
    for attempt in (
        lambda: first.save(position(2), old),
        lambda: first.renew(old),
        lambda: first.release(old),
        lambda: first.delete(old, reason="late"),
    ):
        with pytest.raises(LeaseLost):
            attempt()
    second.save(position(3), new)
    loaded = first.load("orders")
    assert loaded is not None
    assert (loaded.cluster_time.time, loaded.writer, loaded.epoch) == (3, "host/2", 2)
    assert [change.what for change in second.history("orders")] == ["taken-over", "acquired"]


def test_saving_and_renewing_keep_the_lease(clocks: Clocks) -> None:
    first, second = clocks.store(), clocks.store()
    lease = first.acquire("orders", "host/1", seconds=10)
    for step in (first.renew, lambda lease: first.save(position(1), lease)):
        with pytest.raises(LeaseHeld):
            second.acquire("orders", "host/2")
        clocks.later(8)
        lease = step(lease)
    with pytest.raises(LeaseHeld) as refusal:
        second.acquire("orders", "host/2")
    assert refusal.value.retry_after > 8
    assert second.holder("orders") == lease


def test_a_challenger_that_was_just_opened_knows_the_age_where_the_store_tells_it(clocks: Clocks) -> None:
    clocks.store().acquire("orders", "host/1", seconds=10)
    clocks.later(10.5)
    challenger = clocks.store()
    assert (challenger.holder("orders") is None) == clocks.tells_time
    clocks.later(10.5)
    assert challenger.holder("orders") is None


def test_a_lease_ends_although_the_clock_of_the_server_was_set_back(clocks: Clocks) -> None:
    clocks.store().acquire("orders", "host/1", seconds=10)
    challenger = clocks.store()
    clocks.later(-3600)
    with pytest.raises(LeaseHeld) as refusal:
        challenger.acquire("orders", "host/2")
    assert refusal.value.retry_after <= 10
    clocks.later(10.5, by_server=False)
    assert challenger.acquire("orders", "host/2").epoch == 2


@pytest.mark.parametrize(
    ("of_holder", "of_challenger"),
    [
        (time.time, MINUTE_AHEAD),
        (MINUTE_BEHIND, time.time),
        (MINUTE_AHEAD, time.time),
        (MINUTE_AHEAD, MINUTE_BEHIND),
    ],
    ids=["challenger ahead", "holder behind", "holder ahead", "two minutes apart"],
)
def test_wall_clocks_neither_end_a_lease_nor_keep_it(
    clocks: Clocks, of_holder: Callable[[], float], of_challenger: Callable[[], float]
) -> None:
    holder, challenger = clocks.store(of_holder), clocks.store(of_challenger)
    lease = holder.acquire("orders", "host/1", seconds=30)
    for second in range(1, 3):
        with pytest.raises(LeaseHeld):
            challenger.acquire("orders", "host/2", seconds=30)
        clocks.later(20)
        lease = holder.save(position(second), lease)
    assert take_over(clocks, challenger, 30.5).epoch == 2


def test_a_wall_clock_that_jumps_to_and_fro_changes_nothing(clocks: Clocks) -> None:
    jump = 0.0
    holder = clocks.store(lambda: time.time() + jump)
    challenger = clocks.store(lambda: time.time() - jump)
    lease = holder.acquire("orders", "host/1", seconds=30)
    for second, jump in enumerate((3_600.0, -7_200.0, 400 * 86_400.0, -400 * 86_400.0), 1):  # noqa: B007
        with pytest.raises(LeaseHeld):
            challenger.acquire("orders", "host/2", seconds=30)
        clocks.later(20)
        lease = holder.save(position(second), lease, reason="after a jump")
    moved = [change.position for change in holder.history("orders") if change.what == "moved"]
    assert [each.cluster_time.time for each in moved if each] == [4, 3, 2, 1]
    assert take_over(clocks, challenger, 30.5).epoch == 2


@pytest.mark.parametrize("owner", ["host/1", "host/2"], ids=["the same process", "another one"])
@pytest.mark.parametrize("store_url", ["kafka"], indirect=True)
def test_a_lease_is_kept_beside_its_cell_by_renewals_of_its_own_epoch_alone(clocks: Clocks, owner: str) -> None:
    """One that had the stream before may still hold records, and say so."""
    holder, challenger = clocks.store(), clocks.store()
    old = holder.acquire("orders", "host/1", seconds=10)
    holder.release(old)
    new = holder.acquire("orders", owner, seconds=10)
    leader = Leader(holder, new, lambda: clocks.now)
    assert isinstance(holder.cells, KafkaCells)
    holder.cells.begin_transaction("orders")
    for renewed in (None, new, new):
        if renewed is not None:
            leader._renew_meanwhile(renewed)
        with pytest.raises(LeaseHeld):
            challenger.acquire("orders", "host/3")
        clocks.later(8)
    leader._renew_meanwhile(old)
    assert challenger.acquire("orders", "host/3").epoch == new.epoch + 1


def test_processes_in_different_time_zones_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file:{tmp_path}"
    far_east = {**os.environ, "TZ": "UTC-14"}
    with GuardedProcess(
        [sys.executable, "-c", SAVE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=far_east
    ) as other:
        assert other.stdout
        offset, saved_at = other.stdout.readline().split()
        assert (int(offset), saved_at[-6:]) == (14 * 3600, "+00:00")
        monkeypatch.setenv("TZ", "UTC+12")
        time.tzset()
        try:
            with open_store(url) as store:
                held, (change, *_) = store.load("orders"), store.history("orders")
                assert held
                assert held.saved_at == datetime.fromisoformat(saved_at)
                assert change.at.isoformat()[-6:] == "+00:00"
                with pytest.raises(LeaseHeld):
                    store.acquire("orders", "host/2")
                other.kill()
                other.wait(SECONDS)
                assert store.acquire("orders", "host/2").epoch == 2
        finally:
            monkeypatch.undo()
            time.tzset()


def test_time_that_passes_for_real_ends_a_lease(store_url: str) -> None:
    with open_store(store_url) as first, open_store(store_url) as second:
        first.acquire("orders", "host/1", seconds=0.3)
        assert second.wait_for_lease("orders", "host/2", timeout=60).epoch == 2
