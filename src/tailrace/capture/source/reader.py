"""Read a stream in a thread of its own, a bounded number of bytes ahead of what is delivered.

Servers that cannot split an event over 16 MB (before 6.0.9) cannot give it: every resume would meet the same error. So
it is read once more without its images, and the document is fetched by its key instead, as it is now. An `_id` of 6 MB
makes an event that no form fits: its token has the `_id` in hexadecimal digits, and the documentKey has it too. 4.2,
4.4, 5.0 and 6.0.5 answer 10334 then, for ever, so that history is lost (`EventUnreadable`).

Tokens that a server answered with ChangeStreamHistoryLost are in quarantine: sending such a token once more cannot
succeed, and tools that do so restart for ever. The tokens of the open gaps in the ledger are in quarantine too, so that
a new process keeps to it from its first command on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace import raw
from tailrace.capture.classifier import Remedy, classify
from tailrace.capture.snapshot.chunk import RAW
from tailrace.capture.source.source import EVENTS_PER_BATCH, EventSource, Start, UnfinishedBatch, token_time
from tailrace.driver import Batch, token_of
from tailrace.errors import EventUnreadable, Outcome, TokenQuarantined
from tailrace.event import ChangeEvent, EventBatch
from tailrace.owned import OwnedThread
from tailrace.token import ResumeToken

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


T = TypeVar("T")


class Closed(Exception):
    """The queue was closed: nothing goes in any more."""


class ByteQueue(Generic[T]):
    """Holds items until their sizes add up to the limit; one item always fits, however large.

    The reader may also be given an error, which it meets after everything that was put in before.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: deque[tuple[int, T]] = deque()
        self.buffered = 0
        """Bytes that wait to be taken."""
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T, size: int) -> None:
        """Wait for room and add an item; raises Closed when nobody will take it."""
        with self._changed:
            while self._items and self.buffered + size > self.limit and not self._closed:
                self._changed.wait()
            if self._closed:
                raise Closed
            self._items.append((size, item))
            self.buffered += size
            self._changed.notify_all()

    def get(self, timeout: float) -> T | None:
        """Take the oldest item, or None when there is none in time; raises the error that ended the writer."""
        with self._changed:
            if not self._items and self._error is None:
                self._changed.wait(timeout)
            if self._items:
                size, item = self._items.popleft()
                self.buffered -= size
                self._changed.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return None

    def fail(self, error: BaseException) -> None:
        """Let the reader meet an error after all items."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse further items and let a waiting writer go."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self.buffered = 0
            self._changed.notify_all()


_WITH_DOCUMENT = ("insert", "replace", "update")


def read_past_large_event(source: EventSource, start: Start) -> Iterator[EventBatch]:
    """Give what lies before the large event, one by one, and then the event itself in a smaller form."""
    try:
        for batch in _batches(source, start):
            yield batch if batch.events else _unfinished(batch)
            if batch.token is not None:
                start = Start(batch.token)
    except Exception as error:
        if classify(error).remedy is not Remedy.READ_SMALLER:
            raise
    try:
        for batch in _batches(source, start, without_images=True):
            if batch.events:
                event = _with_document(source.documents(), batch.events[0])
                yield Batch([event], batch.token, batch.operation_time)
                return
    except Exception as error:
        if classify(error).remedy is not Remedy.READ_SMALLER:
            raise
        raise EventUnreadable("an event is over 16 MB without its images too, so the stream cannot pass it") from error


def _unfinished(batch: EventBatch) -> EventBatch:
    """Say of an empty batch that more is to come: the large event is, whatever the server gives before it."""
    return batch if batch.token is None else UnfinishedBatch(batch.token, batch.operation_time)


def _batches(source: EventSource, start: Start, *, without_images: bool = False) -> Iterator[EventBatch]:
    stream = source.open(start, one_by_one=True, without_images=without_images)
    try:
        yield from stream.batches()
    finally:
        stream.close()


def _with_document(client: MongoClient[Any], event: bytes) -> bytes:
    """Add the document as it is now, where the event would have had one; a deleted one stays out.

    `imageFetched` says that it may be newer than the event.
    """
    view = ChangeEvent(event)
    key, (database, name) = view.document_key, view.database_and_collection
    if key is None or database is None or name is None or view.operation_type not in _WITH_DOCUMENT:
        return event
    found = client[database].get_collection(name, codec_options=RAW).find_one(RawBSONDocument(key))
    marks = [raw.element(raw.BOOL, b"imageFetched", raw.boolean(True))]
    if found is not None:
        marks.append(raw.element(raw.DOCUMENT, b"fullDocument", bytes(found.raw)))
    return raw.append(event, *marks)


class Quarantine:
    """The dead tokens of one stream, known by their sort key."""

    def __init__(self, tokens: Iterable[bytes] = ()) -> None:
        self._keys = {ResumeToken.parse(token).key for token in tokens}

    def add(self, token: bytes) -> None:
        """Keep a token from being sent from now on."""
        self._keys.add(ResumeToken.parse(token).key)

    def add_all(self, tokens: Iterable[bytes]) -> None:
        """Keep all of these tokens from being sent."""
        for token in tokens:
            self.add(token)

    def contains(self, token: bytes) -> bool:
        """Whether the token was answered with HistoryLost before."""
        return bool(self._keys) and ResumeToken.parse(token).key in self._keys

    def check(self, token: bytes) -> None:
        """Raise before a dead token is sent."""
        if self.contains(token):
            raise TokenQuarantined(
                f"the server has already said that the history after {ResumeToken.parse(token)} is lost",
                token=ResumeToken.parse(token).hex,
            )
