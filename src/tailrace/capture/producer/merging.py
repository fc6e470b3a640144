"""Let the rows of a snapshot into the stream at the places where they belong: behind the last event they include."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from bson.timestamp import Timestamp

from tailrace.capture.snapshot import Rows
from tailrace.capture.source.reader import ReadBatch
from tailrace.capture.source.source import token_time
from tailrace.driver import token_of

_SECONDS_FOR_ROWS = 0.05


class RowSource(Protocol):
    """What a `Backfill` is to the merge."""

    @property
    def barrier(self) -> Timestamp | None:
        """The time behind which the stream must wait."""

    def order(self) -> None:
        """Have more read, as of now."""

    def collect(self, wait: float = 0.0) -> None:
        """Take over what was read."""

    def due(self, passed: Callable[[Timestamp], bool]) -> list[Rows]:
        """Give the rows whose time has passed, the oldest first."""


class Merge:
    """Gives batches of the stream and rows of a snapshot in the one order that leaves nothing stale.

    The stream runs up to the oldest time for which rows are being read, and waits there for the rows.
    """

    def __init__(self, rows: RowSource | None) -> None:
        self._rows = rows
        self._buffered: ReadBatch | None = None
        self._time: Timestamp | None = None
        self._has_begun = False
        self._caught_up = False

    def end_of_rows(self) -> None:
        """Go on with the stream alone."""
        self._rows = None

    def next_batch(self, read: Callable[[], ReadBatch | None]) -> ReadBatch | None:
        """Give what may be delivered next: what was buffered, or what `read` gives; None when nothing may."""
        batch = self._buffered if self._buffered is not None else read()
        barrier = self._rows.barrier if self._rows else None
        if batch is None or barrier is None:
            self._buffered = None
            return batch
        now, self._buffered = cut(batch, barrier)
        if now is None and self._rows:
            self._rows.collect(_SECONDS_FOR_ROWS)
        return now

    def delivered(self, batch: ReadBatch) -> None:
        """Note that a batch was given to the sink.

        The first batch of a stream is empty at the place it was opened at, and says nothing about what follows: a
        stream that begins one tick behind the newest operation has the next write's very time as its mark.
        """
        if batch.token is not None:
            self._time = token_time(batch.token)
        self._caught_up = batch.caught_up and self._has_begun
        self._has_begun = True

    def next_rows(self) -> list[Rows]:
        """Give the rows that come next, and have more of them read."""
        if self._rows is None:
            return []
        self._rows.order()
        self._rows.collect()
        return self._rows.due(self.has_passed)

    def has_passed(self, at: Timestamp) -> bool:
        """Whether every event up to a time was delivered.

        A position at that very time is not enough, since a transaction has many events of one time; unless the server
        had nothing more to give.
        """
        if self._buffered is not None:
            return event_time(self._buffered.events[0]) > at
        if self._time is None:
            return False
        return self._time > at or (self._caught_up and self._time == at)


def event_time(event: bytes) -> Timestamp:
    """Give the cluster time of an event."""
    return token_time(token_of(event))


def cut(batch: ReadBatch, at: Timestamp) -> tuple[ReadBatch | None, ReadBatch | None]:
    """Cut a batch behind the last event of a time: what comes up to there, and what comes later."""
    events = batch.events
    if not events or event_time(events[-1]) <= at:
        return batch, None
    index = bisect_right(events, at, key=event_time)
    later = replace(batch, events=events[index:])
    if not index:
        return None, later
    sooner = replace(later, events=events[:index], token=token_of(events[index - 1]), caught_up=False)
    return sooner, later
