"""Asking for the next batch while the user works on the one before."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from bson import Timestamp
from pymongo import AsyncMongoClient

from tailrace.client import AsyncRawCursor, RawCursor
from tailrace.driver import watch
from tailrace.stand import ReplicaSet
from waiting import SECONDS


@pytest.fixture
def orders(database: Any) -> Any:
    database.create_collection("orders")
    return database.orders


EVENTS_PER_BATCH = 1000
"""Of so many events that `Reply.has_more`."""


@pytest.fixture
def backlog(orders: Any) -> Any:
    """Several large batches of events."""
    orders.insert_many([{"n": n} for n in range(5 * EVENTS_PER_BATCH)])
    return orders


def _first_insert(orders: Any) -> Timestamp:
    entry = orders.database.client.local["oplog.rs"].find_one(
        {"ns": orders.full_name, "op": "i"}, sort=[("$natural", 1)]
    )
    return entry["ts"]


@contextmanager
def _noted(cursor: type[RawCursor] | type[AsyncRawCursor]) -> Iterator[list[Any]]:
    """Note the cursors that ask ahead while inside."""
    asked: list[Any] = []
    original: Callable[..., Any] = cursor.read_ahead

    def note(self: Any, command: Any) -> Any:
        asked.append(self)
        return original(self, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor, "read_ahead", note)
        yield asked


def _idle_cursors(backlog: Any) -> list[Any]:
    """The cursors of the collection that the server still holds, in use or not."""
    stages = [
        {"$currentOp": {"idleCursors": True, "allUsers": True}},
        {"$match": {"ns": backlog.full_name, "cursor": {"$exists": True}}},
    ]
    return list(backlog.database.client.admin.aggregate(stages))


def _wait_until_no_cursor_is_left(backlog: Any) -> None:
    deadline = time.monotonic() + 200
    while found := _idle_cursors(backlog):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.parametrize("fails", [False, True])
def test_every_event_comes_once(fails: bool, mongodb: ReplicaSet, orders: Any, backlog: Any) -> None:
    start = _first_insert(orders)
    try:
        with (
            _noted(RawCursor) as asked,
            watch(orders, start_at_operation_time=start, batch_size=EVENTS_PER_BATCH) as stream,
        ):
            seen = [next(stream)["fullDocument"]["n"]]
            if fails:
                mongodb.primary.set_fail_point(
                    "failCommand", {"times": 1}, {"failCommands": ["getMore"], "closeConnection": True}
                )
            seen += [next(stream)["fullDocument"]["n"] for _ in range(5 * EVENTS_PER_BATCH - 1)]
    finally:
        mongodb.primary.set_fail_point("failCommand", "off")
    assert seen == list(range(5 * EVENTS_PER_BATCH))
    assert len(asked) >= 3


def test_closing_does_not_wait_for_what_was_asked_for(backlog: Any) -> None:
    # One batch with all events: the getMore after it has to wait for as long as it may.
    stream = watch(backlog, start_at_operation_time=_first_insert(backlog), max_await_time_ms=60_000)
    for _ in range(5 * EVENTS_PER_BATCH):
        next(stream)
    assert _idle_cursors(backlog)
    stream.close()
    assert not stream.alive
    _wait_until_no_cursor_is_left(backlog)


def test_a_stream_that_nobody_holds_any_more_leaves_nothing_behind(backlog: Any) -> None:
    stream = watch(backlog, start_at_operation_time=_first_insert(backlog), max_await_time_ms=60_000)
    next(stream)
    del stream
    gc.collect()
    _wait_until_no_cursor_is_left(backlog)


@pytest.mark.parametrize(("connections", "asks"), [(1, False), (2, True), (3, True)])
def test_connections_are_left_for_others(connections: int, asks: bool, mongodb: ReplicaSet, backlog: Any) -> None:
    """While a stream is behind, the same client can be used, however small its pool is."""
    start = _first_insert(backlog)
    with mongodb.client(maxPoolSize=connections, waitQueueTimeoutMS=20_000) as client:
        orders = client[backlog.database.name].orders
        options = {"start_at_operation_time": start, "batch_size": EVENTS_PER_BATCH}
        with _noted(RawCursor) as asked, watch(orders, **options) as stream:
            for _ in range(4 * EVENTS_PER_BATCH):
                next(stream)
            assert any(cursor._ahead is not None for cursor in asked) == asks
            assert orders.count_documents({}) == 5 * EVENTS_PER_BATCH


@pytest.mark.parametrize("trouble", ["none", "failure", "cancellation"])
def test_async_streams_ask_ahead_too(trouble: str, mongodb: ReplicaSet, backlog: Any) -> None:
    """Every event once, whether the getMore ahead fails or the call that waits for it is cancelled."""
    asyncio.run(_read_through(trouble, mongodb, backlog))


async def _read_through(trouble: str, mongodb: ReplicaSet, backlog: Any) -> None:
    seen: list[int] = []
    to_cancel = {EVENTS_PER_BATCH, 2 * EVENTS_PER_BATCH} if trouble == "cancellation" else set()
    options = {"start_at_operation_time": _first_insert(backlog), "batch_size": EVENTS_PER_BATCH}
    name = backlog.database.name
    async with AsyncMongoClient(mongodb.uri) as client:
        with _noted(AsyncRawCursor) as asked:
            async with watch(client[name][backlog.name], **options) as stream:
                while len(seen) < 5 * EVENTS_PER_BATCH:
                    if trouble == "failure" and len(seen) == 1:
                        # The command that is on its way has passed the fail point; the one after it meets it.
                        mongodb.primary.set_fail_point(
                            "failCommand", {"times": 1}, {"failCommands": ["getMore"], "closeConnection": True}
                        )
                    waiting = asyncio.ensure_future(stream.next())
                    if len(seen) in to_cancel:
                        to_cancel.remove(len(seen))
                        await asyncio.sleep(0)
                        if waiting.cancel():
                            with suppress(asyncio.CancelledError):
                                seen.append((await waiting)["fullDocument"]["n"])
                            continue
                    seen.append((await waiting)["fullDocument"]["n"])
    mongodb.primary.set_fail_point("failCommand", "off")
    assert seen == list(range(5 * EVENTS_PER_BATCH))
    assert len(asked) >= (2 if trouble == "cancellation" else 3)


def test_closing_an_async_stream_ends_what_was_asked_for(mongodb: ReplicaSet, backlog: Any) -> None:
    """One batch brings all events: the getMore after it would wait for more, and so would whoever asks for them."""
    asyncio.run(_close_while_waiting(mongodb, backlog))


async def _close_while_waiting(mongodb: ReplicaSet, backlog: Any) -> None:
    async with AsyncMongoClient(mongodb.uri) as client:
        target = client[backlog.database.name][backlog.name]
        stream = await watch(target, start_at_operation_time=_first_insert(backlog), max_await_time_ms=60_000)
        with _noted(AsyncRawCursor) as asked:
            for _ in range(5 * EVENTS_PER_BATCH):
                await stream.next()
        assert len(asked) == 1
        waiting = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        await stream.close()
        with pytest.raises(StopAsyncIteration):
            async with asyncio.timeout(SECONDS):
                await waiting
