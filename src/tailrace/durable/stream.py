"""`DurableStream` and `AsyncDurableStream`: a change stream that goes on where the last process was.

Its source gives batches no larger than what an application takes at once, so that a position lies between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import bson
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient, MongoClient

from tailrace.capture.dead_letters.dead_letters import NoDeadLetters
from tailrace.capture.formats.bson import BsonFormat
from tailrace.capture.positions import PositionStore, open_store
from tailrace.capture.producer.control import ProducerOptions
from tailrace.capture.producer.producer import Producer
from tailrace.capture.producer.status import ProducerStatus
from tailrace.capture.recovery.inventory import KeyInventory, LocalInventory, NoInventory
from tailrace.capture.source.namespaces import EVERYTHING, Namespaces
from tailrace.capture.source.source import ChangeStreamSource, Scope, Selection, Start
from tailrace.deployment import Deployment
from tailrace.driver import Batch, WatchOptions, token_of
from tailrace.driver.target import AsyncTarget, Target, Watched
from tailrace.durable.handoff import Handoff, HandoffSink, Step
from tailrace.durable.options import DurableOptions
from tailrace.errors import StoreUnavailable
from tailrace.event import EventBatch, EventStream, StreamOf
from tailrace.owned import OwnedThread
from tailrace.retry import RetryPolicy

_MEGABYTE = 2**20
_SOCKET_TIMEOUT_MS = 20_000
_LONGEST_WAIT = 1.0
_AWAIT_MS = 1_000
_AWAIT_MS_UNTIL_IDLE = 50
"""A run that is to end learns sooner that nothing more comes."""
_SECONDS_TO_END = 30.0


class Feed:
    """The producer in a thread of its own, and what it hands over. Both kinds of stream read from one."""

    def __init__(self, target: Target | AsyncTarget, options: DurableOptions) -> None:
        watched = Watched.of(target, WatchOptions())
        self.decode: Callable[[bytes], Any] = lambda event: bson.decode(event, codec_options=watched.codec)
        self._opened = ExitStack()
        self.handoff = Handoff(options.buffer_mb * _MEGABYTE)
        with ExitStack() as opened:
            client = opened.enter_context(_own_client(watched.client))
            Deployment.of(client).require_change_streams(str(client.address or client.nodes))
            store = options.store
            if isinstance(store, str):
                store = opened.enter_context(open_store(store))
            database = None if watched.scope.whole_cluster else watched.scope.database
            collection = watched.scope.collection
            self.name = options.name or ".".join(part for part in (database, collection) if part) or "cluster"
            source = SmallSteps(client, _selection(database, collection, options))
            source.step = options.batch_size
            if options.start == "now" and _has_no_position(store, self.name):
                source.begin_here()
            self.producer = Producer(
                source,
                store,
                BsonFormat(),
                lambda: HandoffSink(self.handoff, self.producer.keep_lease),
                NoDeadLetters().add,
                _inventory(options),
                _producer_options(self.name, options),
            )
            self._opened = opened.pop_all()
        self._thread = OwnedThread(self._run, name=f"tailrace-durable-{self.name}")
        self._thread.start()

    def close(self) -> None:
        """Save the position behind what was acknowledged, give the lease back and end."""
        self.producer.stop()
        self.handoff.close()
        self._thread.join(_SECONDS_TO_END)
        self._opened.close()

    def _run(self) -> None:
        try:
            self.producer.run()
        except Exception as error:
            self.handoff.finish(error)
        else:
            self.handoff.finish()


def _has_no_position(store: PositionStore, name: str) -> bool:
    """Whether a stream is new; a store that does not answer is asked again by the producer."""
    try:
        return store.load(name) is None
    except StoreUnavailable:
        return False


class _Handed:
    """What the streams for threads and for asyncio have in common: the step whose events were given out."""

    def __init__(self) -> None:
        self._opened: Feed | None = None
        self._step: Step | None = None
        self._remaining: list[bytes] = []
        self._stopping = False

    @property
    def _feed(self) -> Feed:
        if self._opened is None:
            raise RuntimeError("the stream is not open: use `async with`")
        return self._opened

    @property
    def name(self) -> str:
        """The stream's name in the store."""
        return self._feed.name

    @property
    def status(self) -> ProducerStatus:
        """What goes on underneath: liveness, position, counts and errors."""
        return self._feed.producer.status

    def decode(self, event: bytes) -> Any:
        """Decode an event as the target does."""
        return self._feed.decode(event)

    def acknowledge(self) -> None:
        """Count the events that were given out as done, without asking for the next one."""
        if self._step is not None and not self._remaining:
            self._feed.handoff.acknowledge(self._step)
            self._step = None


class DurableStream(_Handed):
    """A change stream that resumes by itself, in this process and in the next one. Made by `watch(..., store=...)`.

    An event counts as done when the next one is asked for, or when the `with` block ends without an error. Whatever
    was not done comes again after a restart: at least once, in order. One process of a name delivers; others stand by
    and take over when it ends or dies.
    """

    def __init__(self, target: Target, options: DurableOptions) -> None:
        super().__init__()
        self._opened = Feed(target, options)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._remaining:
            events = self._next_events()
            if events is None:
                raise StopIteration
            self._remaining = events
        return self._feed.decode(self._remaining.pop(0))

    def batches(self) -> Iterator[list[Any]]:
        """Give lists of at most `batch_size` events; a list is done when the next one is asked for."""
        while (events := self._next_events()) is not None:
            yield [self._feed.decode(event) for event in events]

    def raw_batches(self) -> Iterator[list[bytes]]:
        """Give the same as BSON."""
        while (events := self._next_events()) is not None:
            yield events

    def stop(self) -> None:
        """End the iteration after the event that is being worked on; from any thread or signal handler."""
        self._stopping = True
        self._feed.producer.stop()

    def close(self) -> None:
        """Save the position behind what is done, give the lease back and end."""
        self._stopping = True
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.acknowledge()
        self.close()

    def _next_events(self) -> list[bytes] | None:
        """Acknowledge the last step and wait for the next; None at the end."""
        self._remaining = []
        self.acknowledge()
        while not self._stopping:
            self._step = self._feed.handoff.take(_LONGEST_WAIT)
            if self._step is not None:
                return list(self._step.events)
            if self._feed.handoff.has_ended:
                break
        return None


class AsyncDurableStream(_Handed):
    """The same for asyncio: `async with watch(...) as stream: async for event in stream: ...`.

    The store and the lease are looked after by a thread; the application's code runs in its event loop alone.
    """

    def __init__(self, target: AsyncTarget, options: DurableOptions) -> None:
        super().__init__()
        self._target = target
        self._options = options
        self._data_available = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self._remaining:
            events = await self._next_events()
            if events is None:
                raise StopAsyncIteration
            self._remaining = events
        return self._feed.decode(self._remaining.pop(0))

    async def batches(self) -> AsyncIterator[list[Any]]:
        """Give lists of at most `batch_size` events; a list is done when the next one is asked for."""
        while (events := await self._next_events()) is not None:
            yield [self._feed.decode(event) for event in events]

    async def raw_batches(self) -> AsyncIterator[list[bytes]]:
        """Give the same as BSON."""
        while (events := await self._next_events()) is not None:
            yield events

    def stop(self) -> None:
        """End the iteration after the event that is being worked on."""
        self._stopping = True
        self._data_available.set()
        if self._opened is not None:
            self._opened.producer.stop()

    async def close(self) -> None:
        """Save the position behind what is done, give the lease back and end."""
        self._stopping = True
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.acknowledge()
        await self.close()

    async def _open(self) -> None:
        if self._opened is None:
            self._opened = await asyncio.to_thread(Feed, self._target, self._options)
            loop = asyncio.get_running_loop()
            self._opened.handoff.listen(lambda: _call(loop, self._data_available.set))

    async def _next_events(self) -> list[bytes] | None:
        await self._open()
        self._remaining = []
        self.acknowledge()
        while not self._stopping:
            self._data_available.clear()
            self._step = self._feed.handoff.take(0)
            if self._step is not None:
                return list(self._step.events)
            if self._feed.handoff.has_ended:
                break
            try:
                await asyncio.wait_for(self._data_available.wait(), _LONGEST_WAIT)
            except TimeoutError:
                continue
        return None


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call in the event loop, unless that has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)


def _own_client(client: MongoClient[Any] | AsyncMongoClient[Any]) -> MongoClient[Any]:
    """Connect as the application does, with connections of our own: its client may be closed, or belong to a loop."""
    return MongoClient(**{**client._init_kwargs, "socketTimeoutMS": _SOCKET_TIMEOUT_MS, "document_class": dict})


def _selection(database: str | None, collection: str | None, options: DurableOptions) -> Selection:
    scope, names = Scope.CLUSTER, EVERYTHING
    if database is not None and collection is not None:
        scope, names = Scope.COLLECTION, Namespaces(collections=(f"{database}.{collection}",))
    elif database is not None:
        scope, names = Scope.DATABASE, Namespaces(databases=(database,))
    return Selection(
        names,
        scope,
        tuple(options.pipeline),
        options.full_document,
        options.full_document_before_change,
        max_await_ms=_AWAIT_MS_UNTIL_IDLE if options.until_idle else _AWAIT_MS,
    )


def _inventory(options: DurableOptions) -> KeyInventory:
    return NoInventory() if options.inventory is None else LocalInventory(Path(options.inventory))


def _producer_options(name: str, options: DurableOptions) -> ProducerOptions:
    return ProducerOptions(
        name=name,
        start=options.start,
        recover=options.recover,
        buffer_bytes=options.buffer_mb * _MEGABYTE,
        commit_interval=options.commit_interval,
        lease_seconds=options.lease_seconds,
        lease_timeout=options.lease_timeout,
        flush_timeout=float("inf"),
        stop_when_idle=options.until_idle,
        backoff=RetryPolicy(budget=options.retry_seconds),
    )


class SmallSteps(ChangeStreamSource):
    """The server's own change streams, in batches of at most `step` events."""

    step = 1
    _first: tuple[bytes, Timestamp] | None = None

    def begin_here(self) -> None:
        """Have a stream without a position begin at this moment, not when its producer has come that far."""
        self._first = super().now()

    def now(self) -> tuple[bytes, Timestamp]:
        """Give the newest position; before a stream was opened, that of `begin_here`."""
        return self._first or super().now()

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open a change stream."""
        if start != Start():
            self._first = None
        stream = super().open(start, one_by_one=one_by_one, without_images=without_images)
        return StreamOf(lambda: self._cut(stream), stream.close)

    def _cut(self, stream: EventStream) -> Iterator[EventBatch]:
        """Give the parts of each batch, with the token behind each part."""
        step = self.step
        for batch in stream.batches():
            events = list(batch.events)
            for begin in range(0, len(events) - step, step):
                part = events[begin : begin + step]
                yield Batch(part, token_of(part[-1]), None)
            last = (len(events) - 1) // step * step if events else 0
            yield Batch(events[last:], batch.token, batch.operation_time)
