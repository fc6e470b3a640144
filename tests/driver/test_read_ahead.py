"""Fetching the next batch while the user works on the one before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from bson import Timestamp
from pymongo import AsyncMongoClient

from tailrace.driver import watch
from tailrace.driver.read_ahead import AsyncReadAhead, ReadAhead
from tailrace.stand import ReplicaSet


@pytest.fixture
def orders(database: Any) -> Any:
    database.create_collection("orders")
    return database.orders


EVENTS_PER_BATCH = 1000
"""Of so many events that `Reply.promises_more`."""


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


@pytest.mark.parametrize("fails", [False, True])
def test_reading_ahead_gives_every_event_once(fails: bool, mongodb: ReplicaSet, orders: Any, backlog: Any) -> None:
    started: list[ReadAhead] = []
    original = ReadAhead.__init__

    def count(self: ReadAhead, run: Any, ended: Any) -> None:
        started.append(self)
        original(self, run, ended)

    start = _first_insert(orders)
    ReadAhead.__init__ = count  # type: ignore[method-assign]
    try:
        with watch(orders, start_at_operation_time=start, batch_size=EVENTS_PER_BATCH) as stream:
            seen = [next(stream)["fullDocument"]["n"]]
            if fails:
                mongodb.primary.set_fail_point(
                    "failCommand", {"times": 1}, {"failCommands": ["getMore"], "closeConnection": True}
                )
            seen += [next(stream)["fullDocument"]["n"] for _ in range(5 * EVENTS_PER_BATCH - 1)]
    finally:
        ReadAhead.__init__ = original  # type: ignore[method-assign]
        mongodb.primary.set_fail_point("failCommand", "off")
    assert seen == list(range(5 * EVENTS_PER_BATCH))
    assert len(started) >= 3


def test_closing_does_not_wait_for_what_is_read_ahead(backlog: Any) -> None:
    start = _first_insert(backlog)
    # One batch with all events: the getMore after it has to wait for as long as it may.
    stream = watch(backlog, start_at_operation_time=start, max_await_time_ms=1_000)
    for _ in range(5 * EVENTS_PER_BATCH):
        next(stream)
    (ahead,) = [thread for thread in threading.enumerate() if thread.name == "tailrace-read-ahead"]
    stream.close()
    assert not stream.alive
    ahead.join(30)
    assert not ahead.is_alive()


@contextmanager
def _async_streams_read_ahead() -> Iterator[list[AsyncReadAhead]]:
    """Note what is read ahead while inside."""
    started: list[AsyncReadAhead] = []
    original = AsyncReadAhead.__init__

    def note(self: AsyncReadAhead, run: Any) -> None:
        started.append(self)
        original(self, run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncReadAhead, "__init__", note)
        yield started


def _tasks_reading_ahead() -> list[Any]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "tailrace-read-ahead"]


@pytest.mark.parametrize("trouble", ["none", "failure", "cancellation"])
def test_async_streams_read_ahead_too(trouble: str, mongodb: ReplicaSet, backlog: Any) -> None:
    """Every event once, whether the getMore ahead fails or the call that waits for it is cancelled."""
    asyncio.run(_read_through(trouble, mongodb, backlog))


async def _read_through(trouble: str, mongodb: ReplicaSet, backlog: Any) -> None:
    seen: list[int] = []
    to_cancel = {EVENTS_PER_BATCH, 2 * EVENTS_PER_BATCH} if trouble == "cancellation" else set()
    options = {"start_at_operation_time": _first_insert(backlog), "batch_size": EVENTS_PER_BATCH}
    with _async_streams_read_ahead() as started:
        async with AsyncMongoClient(mongodb.uri) as client:
            async with watch(client[backlog.database.name][backlog.name], **options) as stream:
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
            assert not _tasks_reading_ahead()
    mongodb.primary.set_fail_point("failCommand", "off")
    assert seen == list(range(5 * EVENTS_PER_BATCH))
    assert len(started) >= (2 if trouble == "cancellation" else 3)


def test_closing_an_async_stream_ends_what_is_read_ahead(mongodb: ReplicaSet, backlog: Any) -> None:
    """One batch brings all events: the getMore after it would wait for more, and so would whoever asks for them."""
    asyncio.run(_close_while_waiting(mongodb, backlog))


async def _close_while_waiting(mongodb: ReplicaSet, backlog: Any) -> None:
    async with AsyncMongoClient(mongodb.uri) as client:
        target = client[backlog.database.name][backlog.name]
        stream = await watch(target, start_at_operation_time=_first_insert(backlog), max_await_time_ms=60_000)
        for _ in range(5 * EVENTS_PER_BATCH):
            await stream.next()
        assert len(_tasks_reading_ahead()) == 1
        waiting = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        await stream.close()
        assert not _tasks_reading_ahead()
        with pytest.raises(StopAsyncIteration):
            async with asyncio.timeout(30):
                await waiting
