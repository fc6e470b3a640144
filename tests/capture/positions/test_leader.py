"""The holder of a lease by its own clock: when it renews, and when it may write no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bson import Timestamp

from tailrace.capture.positions import Lease, Position, PositionStore, boot_time
from tailrace.capture.positions.file import FileCells
from tailrace.capture.positions.leader import Leader
from tailrace.capture.positions.observed import ObservedCells
from tailrace.errors import LeaseExpired, LeaseHeld, LeaseLost, StoreUnavailable
from waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now

    def let_it_look(self, times: int = 20) -> None:
        """Wait until a thread has looked at the clock some more times."""
        until = self.looks + times
        wait_until(lambda: self.looks >= until, "the clock is looked at")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> PositionStore:
    return PositionStore(FileCells(tmp_path), lease_clock=clock)


@pytest.fixture
def leader(store: PositionStore, clock: Clock) -> Leader:
    return Leader(store, store.acquire("orders", "host/1", seconds=30), clock)


@pytest.mark.parametrize(
    "ask",
    [
        lambda store, lease: store.renew(lease),
        lambda store, lease: store.save(Position(None, Timestamp(1, 1)), lease),
        lambda store, lease: store.acquire("payments", "host/1", seconds=30),
    ],
    ids=["renew", "save", "acquire"],
)
def test_the_term_counts_from_before_it_was_asked_for(
    store: PositionStore, clock: Clock, leader: Leader, ask: Callable[[PositionStore, Lease], Lease]
) -> None:
    class Slow(FileCells):
        def swap(self, *arguments: object) -> bool:
            clock.now += 7
            return super().swap(*arguments)  # type: ignore[arg-type]

    slow = PositionStore(Slow(store.cells._folder), lease_clock=clock)  # type: ignore[attr-defined]
    held = Leader(slow, ask(slow, leader.lease), clock)
    assert held.seconds_left() == 23


def test_a_cell_is_watched_from_after_it_was_read_to_before_it_was_read_again(clock: Clock) -> None:
    """It may have been written while the first read was under way, and changed during the second."""
    observed = ObservedCells(clock)

    def slowly(_: str) -> bytes:
        clock.now += 7
        return b"cell"

    observed.read("orders", slowly)
    clock.now += 10
    observed.read("orders", slowly)
    assert observed.seconds_unchanged("orders") == 10


def test_time_in_which_the_store_did_not_answer_does_not_count(clock: Clock) -> None:
    """The holder could not renew its lease then; it has the rest of its term to do so."""
    observed = ObservedCells(clock)

    def fails(_: str) -> bytes:
        raise StoreUnavailable("nobody answers")

    def read(seconds: float, answer: Callable[[str], bytes] = lambda _: b"cell") -> float:
        clock.now += seconds
        observed.read("orders", answer)
        return observed.seconds_unchanged("orders")

    assert read(0) == 0
    assert read(10) == 10
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            read(20, fails)
    assert read(5) == 10
    assert read(5) == 15


def test_how_long_an_older_cell_was_watched_says_nothing_of_what_was_written_since(
    store: PositionStore, clock: Clock, leader: Leader
) -> None:
    store.load("orders")
    clock.now += 31
    store.load("orders")
    store.renew(leader.lease)
    with pytest.raises(LeaseHeld):
        store.acquire("orders", "host/2")


def test_a_fresh_lease_is_not_renewed(store: PositionStore, clock: Clock, leader: Leader) -> None:
    before = store.cells.read("orders")
    clock.now += 9
    leader.check(in_flight=True)
    leader.keep()
    assert store.cells.read("orders") == before


@pytest.mark.parametrize("in_flight", [False, True])
def test_one_that_is_half_over_is_renewed_before_anything_is_written(
    clock: Clock, leader: Leader, in_flight: bool
) -> None:
    clock.now += 16
    leader.check(in_flight=in_flight)
    assert leader.seconds_left() == 30


def test_after_its_end_what_is_in_flight_is_thrown_away_first(clock: Clock, leader: Leader) -> None:
    clock.now += 31
    with pytest.raises(LeaseExpired):
        leader.check(in_flight=True)
    leader.keep()
    leader.check(in_flight=True)


def test_after_its_end_it_is_renewed_when_nobody_has_it_and_nothing_is_in_flight(clock: Clock, leader: Leader) -> None:
    clock.now += 31
    leader.check(in_flight=False)
    assert leader.seconds_left() == 30


def test_after_a_takeover_nothing_is_written(store: PositionStore, clock: Clock, leader: Leader) -> None:
    store.load("orders")
    clock.now += 31
    assert store.acquire("orders", "host/2").epoch == 2
    with pytest.raises(LeaseLost):
        leader.check(in_flight=False)


@pytest.fixture
def waiting(store: PositionStore, clock: Clock) -> Iterator[Leader]:
    """A leader whose other thread waits for somebody from now on."""
    with Leader(store, store.acquire("orders", "host/1", seconds=0.5), clock) as held:
        yield held


def test_a_thread_that_waits_for_a_broker_keeps_its_lease(waiting: Leader, store: PositionStore, clock: Clock) -> None:
    for _ in range(3):
        before = store.cells.read("orders")
        clock.let_it_look()
        assert store.cells.read("orders") == before, "it is early"
        clock.now += 0.3
        wait_until(lambda: waiting.seconds_left() == 0.5, "it is renewed")
        assert store.cells.read("orders") != before


def test_a_lease_that_ended_meanwhile_is_not_renewed(waiting: Leader, store: PositionStore, clock: Clock) -> None:
    """What is in flight has to be thrown away first, which only the thread that delivers can do."""
    before = store.cells.read("orders")
    clock.now += 0.5
    clock.let_it_look()
    assert store.cells.read("orders") == before
    with pytest.raises(LeaseExpired):
        waiting.check(in_flight=True)


def test_a_thread_that_hangs_loses_its_lease(waiting: Leader, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.capture.positions.leader._LONGEST_CALL", 0.7)
    for _ in range(2):
        for _ in range(2):
            clock.now += 0.3
            wait_until(lambda: waiting.seconds_left() == 0.5, "it is renewed")
        waiting.keep()  # a sign of life
    for renewed in (True, True, False):
        clock.now += 0.3
        clock.let_it_look()
        assert (waiting.seconds_left() == 0.5) == renewed


def test_a_takeover_is_met_by_the_one_who_writes(store: PositionStore, clock: Clock) -> None:
    def take_over_and_write() -> None:
        with Leader(store, store.acquire("orders", "host/1", seconds=0.5), clock) as held:
            store.release(held.lease)
            store.acquire("orders", "host/2", seconds=0.5)
            clock.now += 0.3
            clock.let_it_look()
            held.check(in_flight=False)

    with pytest.raises(LeaseLost, match="the writer is host/2"):
        take_over_and_write()


def test_a_store_that_is_away_lets_nothing_be_written_for_long(clock: Clock, leader: Leader, tmp_path: Path) -> None:
    for file in tmp_path.iterdir():
        file.unlink()
    tmp_path.rmdir()
    tmp_path.touch()  # a file where the folder was
    clock.now += 14
    leader.check(in_flight=True)
    clock.now += 2
    with pytest.raises(StoreUnavailable):
        leader.check(in_flight=True)


def test_the_clock_of_leases_counts_from_the_boot_and_goes_forward() -> None:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert abs(boot_time() - uptime) < 60
    assert boot_time() <= boot_time()
