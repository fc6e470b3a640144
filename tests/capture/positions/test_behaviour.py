"""What every position store does, run over all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import bson
import pytest
from bson import Binary, Timestamp

from tailrace.capture.positions import Counts, Position, PositionStore
from tailrace.capture.positions.open import open_store
from tailrace.errors import LeaseHeld, LeaseLost, PositionInvalid, StoreUnavailable
from waiting import SECONDS

Open = Callable[[], PositionStore]


def position(seconds: int, **parts: object) -> Position:
    token = bson.encode({"_data": f"82{seconds:08X}000000012B0229296E04"})
    return Position(token, Timestamp(seconds, 1), **parts)  # type: ignore[arg-type]


def test_an_unknown_name_has_no_position_no_holder_and_no_history(store: PositionStore) -> None:
    assert store.load("orders") is None
    assert store.holder("orders") is None
    assert store.history("orders") == []
    assert store.names() == []


def test_what_was_saved_is_loaded_by_another_process(store: PositionStore, open_another: Open) -> None:
    shard_token = bson.encode({"_data": "82AB", "_typeBits": Binary(b"\x82", 0)})
    saved = position(100, shards={"shard1": shard_token}, fingerprint="f00d", counts=Counts(5, 1000, 2, 1))
    lease = store.acquire("orders", "host/1")
    store.save(saved, lease)
    loaded = open_another().load("orders")
    assert loaded is not None
    assert (loaded.token, loaded.cluster_time, loaded.shards) == (saved.token, saved.cluster_time, saved.shards)
    assert (loaded.fingerprint, loaded.counts) == ("f00d", Counts(5, 1000, 2, 1))
    assert (loaded.writer, loaded.epoch) == ("host/1", 1)
    assert loaded.saved_at is not None


def test_a_position_may_be_a_time_without_a_token(store: PositionStore) -> None:
    store.save(Position(None, Timestamp(7, 8)), store.acquire("orders", "host/1"))
    loaded = store.load("orders")
    assert loaded is not None
    assert (loaded.token, loaded.cluster_time) == (None, Timestamp(7, 8))


def test_names_are_independent_and_may_hold_any_character(store: PositionStore) -> None:
    names = ["orders", "a/b c", "größe.*", "../up"]
    for second, name in enumerate(names, 1):
        store.save(position(second), store.acquire(name, "host/1"))
    assert store.names() == sorted(names)
    assert [loaded.cluster_time.time for name in names if (loaded := store.load(name))] == [1, 2, 3, 4]


def test_a_second_writer_is_refused_and_told_who_and_until_when(store: PositionStore, open_another: Open) -> None:
    store.acquire("orders", "host/1", seconds=20)
    with pytest.raises(LeaseHeld) as refusal:
        open_another().acquire("orders", "host/2")
    assert refusal.value.holder == "host/1"
    assert 0 < refusal.value.retry_after <= 20


def test_the_second_writer_waits_until_the_first_is_done(store: PositionStore, open_another: Open) -> None:
    lease = store.acquire("orders", "host/1", seconds=60)
    second = open_another()
    pauses = []

    def release_on_second_try(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 2:
            store.release(lease)

    assert second.wait_for_lease("orders", "host/2", timeout=60, sleep=release_on_second_try).epoch == 2
    assert len(pauses) == 2


def test_waiting_for_a_lease_ends_with_its_timeout(store: PositionStore, open_another: Open) -> None:
    store.acquire("orders", "host/1", seconds=60)
    with pytest.raises(LeaseHeld):
        open_another().wait_for_lease("orders", "host/2", timeout=0.01)


def test_a_fenced_writer_with_the_same_name_is_refused_too(store: PositionStore, open_another: Open) -> None:
    old = store.acquire("orders", "host/1")
    store.release(old)
    open_another().acquire("orders", "host/1")
    with pytest.raises(LeaseLost):
        store.save(position(1), old)


def test_of_many_writers_at_once_one_gets_the_lease(store_url: str) -> None:
    outcomes: list[str] = []
    stores = [open_store(store_url) for _ in range(4)]
    start = threading.Barrier(len(stores))

    def try_to_acquire(number: int) -> None:
        start.wait(SECONDS)
        for _ in range(10):
            try:
                stores[number].acquire("orders", f"host/{number}", seconds=600)
                outcomes.append("acquired")
            except LeaseHeld:
                outcomes.append("held")
            except StoreUnavailable:
                continue  # a broker may answer a writer that was fenced while it committed with an unknown error
            return

    threads = [threading.Thread(target=try_to_acquire, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    for opened in stores:
        opened.close()
    assert sorted(outcomes) == ["acquired", "held", "held", "held"]


def test_a_position_goes_back_only_with_a_reason(store: PositionStore) -> None:
    lease = store.save(position(50), store.acquire("orders", "host/1"))
    with pytest.raises(PositionInvalid):
        store.save(position(49), lease)
    store.save(position(49), lease, reason="deliver the last hour again")
    loaded = store.load("orders")
    assert loaded is not None
    assert loaded.cluster_time.time == 49


def test_the_trail_says_who_did_what_when_and_why(store: PositionStore, open_another: Open) -> None:
    lease = store.acquire("orders", "host/1", reason="first start")
    for second in range(1, 4):
        lease = store.save(position(second), lease)
    lease = store.save(position(9), lease, reason="asked for by Ada")
    store.release(lease)
    again = open_another()
    again.acquire("orders", "host/2")
    history = again.history("orders")
    assert [(change.who, change.what, change.why, change.epoch) for change in history] == [
        ("host/2", "acquired", "start", 2),
        ("host/1", "released", "stop", 1),
        ("host/1", "moved", "asked for by Ada", 1),
        ("host/1", "acquired", "first start", 1),
    ]
    assert [change.position.cluster_time.time if change.position else None for change in history] == [9, 9, 9, None]
    assert history == sorted(history, key=lambda change: change.at, reverse=True)
    assert store.history("orders", limit=1) == history[:1]


def test_a_deleted_position_is_gone_and_its_trail_stays(store: PositionStore, open_another: Open) -> None:
    lease = store.save(position(5), store.acquire("orders", "host/1"))
    store.delete(lease, reason="the pipeline is gone")
    other = open_another()
    assert other.load("orders") is None
    assert other.names() == []
    assert other.history("orders")[0].why == "the pipeline is gone"
    with pytest.raises(LeaseLost):
        store.save(position(6), lease)
    assert other.acquire("orders", "host/2").epoch == 2


def test_a_swap_whose_answer_was_lost_counts_as_done(store_url: str) -> None:
    with open_store(store_url) as plain:
        cells = plain.cells
        swap = cells.swap

        def lose_the_first_answer(*arguments: object) -> bool:
            cells.swap = swap  # type: ignore[method-assign]
            assert swap(*arguments)  # type: ignore[arg-type]
            return False

        store = PositionStore(cells)
        lease = store.acquire("orders", "host/1")
        cells.swap = lose_the_first_answer  # type: ignore[method-assign]
        store.save(position(3), lease, reason="once")
        assert [change.why for change in store.history("orders")] == ["once", "start"]


def test_what_is_no_position_is_told_and_can_be_set_again_and_concerns_no_other_name(
    store: PositionStore, open_another: Open
) -> None:
    for second, name in enumerate(("orders", "others"), 1):
        store.save(position(second), store.acquire(name, "host/1"))
    whole = store.cells.read("orders")
    assert whole is not None
    assert store.cells.swap("orders", whole, whole[: len(whole) // 2], None)
    another = open_another()
    with pytest.raises(PositionInvalid, match="not a position") as told:
        another.load("orders")
    assert "position set" in told.value.hint
    with pytest.raises(PositionInvalid):
        another.acquire("orders", "host/2")
    assert another.names() == ["orders", "others"]
    loaded = another.load("others")
    assert loaded is not None
    assert not another.discard_damaged("others", reason="a mistake")
    assert another.discard_damaged("orders", reason="torn")
    lease = another.acquire("orders", "host/2")
    assert lease.epoch == 2, "the epochs of before stay fenced"
    another.save(position(3), lease)
    last = open_another().load("orders")
    assert last is not None
    assert last.cluster_time.time == 3
    assert [change.what for change in another.history("orders")] == ["acquired", "discarded", "acquired"]
