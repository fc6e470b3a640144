"""Read a stream in a thread of its own, a bounded number of bytes ahead of what is delivered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bson.timestamp import Timestamp

from tailrace.capture.classifier import Remedy, classify
from tailrace.capture.source.byte_queue import ByteQueue, Closed
from tailrace.capture.source.large_events import read_past_large_event
from tailrace.capture.source.quarantine import Quarantine
from tailrace.capture.source.source import EVENTS_PER_BATCH, EventSource, Start, UnfinishedBatch, token_time
from tailrace.driver import token_of
from tailrace.errors import Outcome
from tailrace.event import EventBatch
from tailrace.owned import OwnedThread

_OVERHEAD: Final = 100
"""Bytes that an event takes in memory beyond its own, about."""
_SECONDS_OF_THE_PRESENT: Final = 1
"""Times of the server have whole seconds."""


class StreamEnded(Exception):
    """The server closed the stream after an invalidate event; it can be opened again behind that."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch of the stream, and where the stream stands after it."""

    events: list[bytes]
    token: bytes | None
    """Where to go on after these events."""
    size: int
    caught_up: bool
    """Whether the server had nothing more to give."""
    operation_time: Timestamp | None

    @property
    def is_recent(self) -> bool:
        """Whether it ends with what has just happened, by the clock of the server that gave it."""
        if self.token is None or self.operation_time is None:
            return False
        return self.operation_time.time - token_time(self.token).time <= _SECONDS_OF_THE_PRESENT


class StreamReader:
    """Opens a stream and reads ahead of its consumer, up to `limit` bytes."""

    def __init__(self, source: EventSource, start: Start, quarantine: Quarantine, limit: int) -> None:
        self._source = source
        self._start = start
        self._quarantine = quarantine
        self._queue: ByteQueue[ReadBatch] = ByteQueue(limit)
        self._closing = False
        self._thread = OwnedThread(self._run, name="tailrace-reader", on_death=self._queue.fail)
        self._thread.start()

    @property
    def buffered(self) -> int:
        """Bytes that were read and not taken yet."""
        return self._queue.buffered

    def get(self, timeout: float) -> ReadBatch | None:
        """Take the next batch; None when there is none in time. Raises what ended the reading."""
        return self._queue.get(timeout)

    def close(self) -> None:
        """End the reading and wait for the thread, which ends with the reply it waits for."""
        self._closing = True
        self._queue.close()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            self._read()
        except Closed:
            return
        except BaseException as error:
            if isinstance(error, Exception) and classify(error).outcome is Outcome.RECOVER and self._start.token:
                self._quarantine.add(self._start.token)
            if not self._closing:
                self._queue.fail(error)

    def _read(self) -> None:
        while not self._closing:
            try:
                self._follow()
            except Exception as error:
                if classify(error).remedy is not Remedy.READ_SMALLER:
                    raise
                for batch in read_past_large_event(self._source, self._start):
                    self._put(_whole(batch))

    def _follow(self) -> None:
        """Read one stream to its end."""
        if self._start.token is not None:
            self._quarantine.check(self._start.token)
        stream = self._source.open(self._start)
        try:
            for found in stream.batches():
                for batch in split(found):
                    self._put(batch)
                if self._closing:
                    return
        finally:
            stream.close()
        raise StreamEnded

    def _put(self, batch: ReadBatch) -> None:
        self._queue.put(batch, batch.size)
        if batch.token is not None:
            self._start = Start(batch.token)


def split(batch: EventBatch) -> Iterator[ReadBatch]:
    """Cut a reply of up to 16 MB, so that delivery begins and the position moves inside of it."""
    events = batch.events
    if len(events) <= EVENTS_PER_BATCH:
        yield _whole(batch)
        return
    last = len(events) - EVENTS_PER_BATCH
    for begin in range(0, len(events), EVENTS_PER_BATCH):
        part = list(events[begin : begin + EVENTS_PER_BATCH])
        token = batch.token if begin >= last else token_of(part[-1])
        yield ReadBatch(part, token, _size(part), False, batch.operation_time)


def _whole(batch: EventBatch) -> ReadBatch:
    events = list(batch.events)
    token = batch.token
    if token is None and events:
        token = token_of(events[-1])
    caught_up = not events and not isinstance(batch, UnfinishedBatch)
    return ReadBatch(events, token, _size(events), caught_up, batch.operation_time)


def _size(events: list[bytes]) -> int:
    return sum(map(len, events)) + _OVERHEAD * (len(events) + 1)
