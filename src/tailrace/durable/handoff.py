"""From the producer's thread to the application's: a bounded buffer of events, and the way back, acknowledgements.

A producer that meets an error makes a new sink and reads again from the committed position. What the old sink still
buffered is dropped then, and acknowledgements of it count for nothing: those events come again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.capture.record import Record
from tailrace.capture.sinks import Sink
from tailrace.errors import Backpressure, SinkUnavailable

_RETRY_AFTER = 0.02
_SECONDS_BETWEEN_SIGNS = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """Events that are handed over together, and acknowledged together."""

    events: list[bytes]
    size: int
    sink: HandoffSink


class Handoff:
    """Between one producer and one reader."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.changed = threading.Condition()
        self.closing = False
        self._sink: HandoffSink | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._listener: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        """Have a function called, in the producer's thread, whenever there may be something to take."""
        self._listener = listener

    def notify(self) -> None:
        """Wake whoever waits; called with the lock held."""
        self.changed.notify_all()
        self._listener()

    def attach(self, sink: HandoffSink | None) -> None:
        """Take steps from this sink from now on."""
        with self.changed:
            self._sink = sink
            self.notify()

    def finish(self, error: BaseException | None = None) -> None:
        """Note that the producer has ended, by an error or because it was asked to."""
        with self.changed:
            self._ended, self._error = True, error
            self.notify()

    def close(self) -> None:
        """Take nothing more: a flush does not wait for what is still buffered."""
        with self.changed:
            self.closing = True
            self.notify()

    def take(self, timeout: float) -> Step | None:
        """Give the next step, waiting for it; None when there is none in time or ever again."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while True:
                if self._error is not None:
                    raise self._error
                if self._sink is not None and self._sink.steps:
                    return self._sink.steps.popleft()
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    return None
                self.changed.wait(left)

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes any more."""
        with self.changed:
            return self._ended and not (self._sink is not None and self._sink.steps)

    def acknowledge(self, step: Step) -> None:
        """Let the position move behind a step."""
        with self.changed:
            step.sink.done += len(step.events)
            step.sink.buffered_bytes -= step.size
            self.changed.notify_all()


class HandoffSink(Sink):
    """The sink of a durable watch: what the application acknowledges is acknowledged."""

    def __init__(self, handoff: Handoff, keep_lease: Callable[[], None]) -> None:
        self._handoff = handoff
        self._keep_lease = keep_lease
        self.steps: deque[Step] = deque()
        self.added = 0
        self.done = 0
        self.buffered_bytes = 0

    def setup(self) -> None:
        """Become the one that the reader takes from."""
        self._handoff.attach(self)

    def add(self, records: Sequence[Record]) -> int:
        """Buffer the events as one step."""
        if not records:
            return self.added
        size = sum(record.size for record in records)
        with self._handoff.changed:
            if self.buffered_bytes and self.buffered_bytes + size > self._handoff.limit:
                raise Backpressure("the application is busy with earlier events", retry_after=_RETRY_AFTER)
            self.steps.append(Step([record.event for record in records], size, self))
            self.added += len(records)
            self.buffered_bytes += size
            self._handoff.notify()
            return self.added

    def acknowledged(self) -> int:
        """Give how many events the application has acknowledged."""
        return self.done

    def flush(self, timeout: float) -> int:
        """Wait for the application, keeping the lease; one that takes nothing more is not waited for."""
        deadline = time.monotonic() + timeout
        while True:
            with self._handoff.changed:
                if self.done >= self.added or self._handoff.closing:
                    return self.done
                self._handoff.changed.wait(_SECONDS_BETWEEN_SIGNS)
            if time.monotonic() > deadline:
                raise SinkUnavailable("the application did not acknowledge its events in time")
            self._keep_lease()

    def close(self) -> None:
        """Drop what was not taken; it is read again. What the reader works on may still be acknowledged."""
        with self._handoff.changed:
            self.steps.clear()
