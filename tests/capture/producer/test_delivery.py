"""What is saved of acknowledged records, and when: a real store, a sink in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import bson
import pytest
from bson.timestamp import Timestamp

from capture_harness import ListSink
from tailrace.capture.formats import make_format
from tailrace.capture.positions import Position, PositionStore, open_store
from tailrace.capture.positions.file import FileCells
from tailrace.capture.positions.leader import Leader
from tailrace.capture.producer.delivery import Delivery, no_hook
from tailrace.capture.recovery.inventory import NoInventory
from tailrace.errors import EventUnconvertible, LeaseLost, StoreUnavailable
from tailrace.monitor import StreamMetrics
from tailrace.retry import DEFAULT_POLICY, Backoff, RetryPolicy
from tailrace.token import ResumeToken


def at(seconds: int) -> Position:
    return Position(None, Timestamp(seconds, 1))


def event(key: int) -> bytes:
    token = bson.decode(ResumeToken.high_water_mark(Timestamp(5, key + 1)).to_bson())
    return bson.encode(
        {
            "_id": token,
            "operationType": "insert",
            "clusterTime": Timestamp(5, key + 1),
            "ns": {"db": "shop", "coll": "orders"},
            "documentKey": {"_id": key},
            "fullDocument": {"_id": key},
        }
    )


def refuse(_: bytes, error: EventUnconvertible) -> None:
    raise error


def delivery_of(
    leader: Leader, pause: Callable[[float, str], None] = lambda *_: None, policy: RetryPolicy = DEFAULT_POLICY
) -> Delivery:
    return Delivery(
        make_format("bson"),
        ListSink([], lambda: True),
        refuse,
        leader,
        NoInventory(),
        StreamMetrics("orders"),
        commit_interval=0.0,
        hook=no_hook,
        pause=pause,
        backoff=Backoff(policy),
    )


def test_the_rows_of_a_snapshot_are_counted_by_the_attempt_that_delivered_them(tmp_path) -> None:
    """Nothing reads them again when it fails before anything behind them moves the position."""
    with (
        open_store(f"file:{tmp_path / 'positions'}") as store,
        Leader(store, store.acquire("orders", "here/1", seconds=600)) as leader,
    ):
        leader.save(at(5))
        delivery = delivery_of(leader)
        delivery.deliver([event(1), event(2)], None)
        delivery.commit(now=True)
        again = delivery_of(leader)
        assert (again.committed.cluster_time, again.counts.events) == (Timestamp(5, 1), 2)
        again.deliver([event(3)], at(6))
        again.deliver([event(4)], None)
        again.commit(now=True)
        assert (leader.position.cluster_time, leader.position.counts.events) == (Timestamp(6, 1), 4)


def test_a_slow_store_is_spared_while_there_is_more_to_read_and_asked_when_the_stream_has_caught_up(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not saved when the process is killed is delivered again."""
    clock = [1000.0]
    virtual = SimpleNamespace(monotonic=lambda: clock[0], time_ns=time.time_ns)
    monkeypatch.setattr("tailrace.capture.producer.delivery.time", virtual)
    with (
        open_store(f"file:{tmp_path / 'positions'}") as store,
        Leader(store, store.acquire("orders", "here/1", seconds=600)) as leader,
    ):
        leader.save(at(5))
        delivery = delivery_of(leader)
        save = leader.save

        def save_slowly(position: Position, **more: object) -> None:
            clock[0] += 0.05
            save(position)

        leader.save = save_slowly
        delivery.deliver([event(1)], at(6))
        delivery.commit()
        assert leader.position.cluster_time == Timestamp(6, 1)
        delivery.deliver([event(2)], at(7))
        clock[0] += 0.3
        delivery.commit()
        assert leader.position.cluster_time == Timestamp(6, 1), "more is there to be read"
        delivery.commit(caught_up=True)
        assert leader.position.cluster_time == Timestamp(7, 1)


def test_a_store_that_is_away_for_a_moment_is_no_reason_to_deliver_everything_again(tmp_path) -> None:
    """The next save has all that was acknowledged meanwhile; who ends tries for a while, and learns that it failed."""
    with (
        open_store(f"file:{tmp_path / 'positions'}") as store,
        Leader(store, store.acquire("orders", "here/1", seconds=600)) as leader,
    ):
        leader.save(at(5))
        delivery = delivery_of(leader, lambda seconds, _: time.sleep(seconds), RetryPolicy(budget=0.2))
        save = leader.save

        def fail(position: Position, **more: object) -> None:
            raise StoreUnavailable("the disk is full")

        leader.save = fail
        leader.keep = lambda: fail(at(0))
        delivery.commit()
        delivery.deliver([event(1)], at(6))
        delivery.commit()
        delivery.deliver([event(2)], at(7))
        delivery.commit()
        with pytest.raises(StoreUnavailable):
            delivery.commit(now=True)
        assert leader.position.cluster_time == Timestamp(5, 1)
        leader.save = save
        delivery.commit(now=True)
        assert (leader.position.cluster_time, leader.position.counts.events) == (Timestamp(7, 1), 2)


def lose(folder: Path) -> Callable[[], None]:
    """Put a file where the folder was, as if its disk were away; gives what brings it back."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.touch()

    def bring_back() -> None:
        folder.unlink()
        away.rename(folder)

    return bring_back


def test_while_the_lease_cannot_be_renewed_nothing_is_delivered_and_then_the_stream_goes_on(tmp_path) -> None:
    """To begin anew would deliver again what was acknowledged since the store went away."""
    clock, pauses = [1000.0], []
    with (
        PositionStore(FileCells(tmp_path / "positions"), lease_clock=lambda: clock[0]) as store,
        Leader(store, store.acquire("orders", "here/1", seconds=30), lambda: clock[0]) as leader,
    ):

        def pause(seconds: float, _: str) -> None:
            pauses.append(seconds)
            clock[0] += 20  # the lease ends meanwhile, and nobody takes it
            if len(pauses) == 3:
                bring_back()
            time.sleep(seconds)

        leader.save(at(5))
        delivery = delivery_of(leader, pause)
        bring_back = lose(tmp_path / "positions")
        delivery.deliver([event(1)], at(6))
        delivery.commit()
        assert not pauses, "the lease lasts long enough"
        clock[0] += 16
        delivery.deliver([event(2)], at(7))
        assert len(pauses) == 3
        delivery.commit(now=True)
        assert (leader.position.cluster_time, leader.position.counts.events) == (Timestamp(7, 1), 2)


def test_a_lease_that_another_took_meanwhile_is_lost(tmp_path) -> None:
    clock = [1000.0]
    with (
        PositionStore(FileCells(tmp_path / "positions"), lease_clock=lambda: clock[0]) as store,
        open_store(f"file:{tmp_path / 'positions'}") as others,
    ):
        leader = Leader(store, store.acquire("orders", "here/1", seconds=0.5), lambda: clock[0])
        leader.save(at(5))

        def pause(seconds: float, _: str) -> None:
            bring_back()
            others.wait_for_lease("orders", "there/1", seconds=30, timeout=60, sleep=time.sleep)
            clock[0] += 20

        delivery = delivery_of(leader, pause)
        bring_back = lose(tmp_path / "positions")
        clock[0] += 0.4
        with pytest.raises(LeaseLost):
            delivery.deliver([event(1)], at(6))


def test_a_store_that_stays_away_is_an_error_once_the_budget_is_spent(tmp_path) -> None:
    clock = [1000.0]
    with (
        PositionStore(FileCells(tmp_path / "positions"), lease_clock=lambda: clock[0]) as store,
        Leader(store, store.acquire("orders", "here/1", seconds=30), lambda: clock[0]) as leader,
    ):
        leader.save(at(5))
        delivery = delivery_of(leader, lambda seconds, _: time.sleep(seconds), RetryPolicy(budget=0.2))
        bring_back = lose(tmp_path / "positions")
        clock[0] += 16
        with pytest.raises(StoreUnavailable):
            delivery.deliver([event(1)], at(6))
        bring_back()


def test_what_is_saved_at_the_end_waits_for_the_store(tmp_path) -> None:
    """A stream whose server is away too, as when its store is that server, does not come again from the last save."""
    with (
        open_store(f"file:{tmp_path / 'positions'}") as store,
        Leader(store, store.acquire("orders", "here/1", seconds=600)) as leader,
    ):
        reasons = []

        def pause(seconds: float, reason: str) -> None:
            time.sleep(seconds)
            reasons.append(reason)
            if reasons == ["the position store is away"] * 2:
                bring_back()

        leader.save(at(5))
        delivery = delivery_of(leader, pause)
        bring_back = lose(tmp_path / "positions")
        delivery.deliver([event(1)], at(6))
        delivery.finish(5)
        assert len(reasons) == 2
        assert (leader.position.cluster_time, leader.position.counts.events) == (Timestamp(6, 1), 1)
