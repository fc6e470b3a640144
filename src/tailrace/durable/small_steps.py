"""A source whose batches are no larger than what an application takes at once, so that positions stand between them."""

from __future__ import annotations

from collections.abc import Iterator

from bson.timestamp import Timestamp

from tailrace.capture.source.source import ChangeStreamSource, Start
from tailrace.driver import Batch, token_of
from tailrace.event import EventBatch, EventStream


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
        return _Cut(super().open(start, one_by_one=one_by_one, without_images=without_images), self.step)


class _Cut:
    def __init__(self, stream: EventStream, step: int) -> None:
        self._stream = stream
        self._step = step

    def batches(self) -> Iterator[EventBatch]:
        """Give the parts of each batch, with the token behind each part."""
        for batch in self._stream.batches():
            events, step = list(batch.events), self._step
            for begin in range(0, len(events) - step, step):
                part = events[begin : begin + step]
                yield Batch(part, token_of(part[-1]), None)
            last = (len(events) - 1) // step * step if events else 0
            yield Batch(events[last:], batch.token, batch.operation_time)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
