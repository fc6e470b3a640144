"""Sinks that wait for an answer: a thread of their own delivers batch after batch, so that nobody else waits."""

from __future__ import annotations

import math
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence

from tailrace.capture.record import Record
from tailrace.capture.sinks.sink import DEFAULT_BUFFER_BYTES, Sink
from tailrace.errors import Backpressure, LeaseExpired, Outcome, SinkUnavailable, TailraceError
from tailrace.owned import OwnedThread
from tailrace.retry import Backoff, RetryPolicy

_PAUSE = 0.01
_SECONDS_TO_END = 10.0


class WorkerSink(Sink):
    """A sink whose subclass says how one batch is delivered, and may take its time for it.

    `deliver` returns when the records are acknowledged, raises SinkUnavailable when trying again may help, and any
    other error when it will not. Tries are repeated with growing pauses until `retry_seconds` are over. Easiest base
    for a sink of your own.
    """

    def __init__(self, *, buffer_bytes: int = DEFAULT_BUFFER_BYTES, retry_seconds: float = 60.0) -> None:
        self._buffer_bytes = buffer_bytes
        self._backoff = Backoff(RetryPolicy(budget=retry_seconds))
        self._waiting: queue.SimpleQueue[tuple[Sequence[Record], int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._buffered = 0
        self._added = 0
        self._acknowledged = 0
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._seconds_left: Callable[[], float] = lambda: math.inf
        self._thread: OwnedThread | None = None

    @abstractmethod
    def connect(self) -> None:
        """Connect and make what is missing; called once, by `setup`."""

    @abstractmethod
    def deliver(self, records: Sequence[Record]) -> None:
        """Deliver the records in order and wait until they are acknowledged."""

    def disconnect(self) -> None:
        """Give connections back; called once, when the thread has ended."""

    def setup(self) -> None:
        """Connect, and start the thread."""
        self.connect()
        self._thread = OwnedThread(self._work, name=type(self).__name__, on_death=self._failed)
        self._thread.start()

    def bind(self, seconds_left: Callable[[], float]) -> None:
        """Note what says how long the right to write lasts."""
        self._seconds_left = seconds_left

    def check_lease(self) -> None:
        """Raise LeaseExpired when another process may deliver the stream by now; called before every delivery.

        A subclass that sends several requests for one batch calls it before each of them.
        """
        if self._seconds_left() <= 0:
            raise LeaseExpired(f"{type(self).__name__} writes no more: the lease of its stream has ended")

    def add(self, records: Sequence[Record]) -> int:
        """Queue the records."""
        self._raise_failure()
        size = sum(record.size for record in records)
        with self._lock:
            if self._buffered and self._buffered + size > self._buffer_bytes:
                raise Backpressure(f"{self._buffered} bytes wait to be delivered", retry_after=_PAUSE)
            self._buffered += size
            self._added += len(records)
        self._waiting.put((records, size))
        return self._added

    def acknowledged(self) -> int:
        """Give what the thread has delivered."""
        self._raise_failure()
        return self._acknowledged

    def flush(self, timeout: float) -> int:
        """Wait for the thread to deliver everything."""
        deadline = time.monotonic() + timeout
        while self.acknowledged() < self._added:
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"{self._buffered} bytes were not delivered in {timeout:g} seconds")
            time.sleep(_PAUSE)
        return self._acknowledged

    def close(self) -> None:
        """End the thread after the try it is at."""
        self._closing.set()
        self._waiting.put(None)
        if self._thread:
            self._thread.join(_SECONDS_TO_END)
            self._thread = None
            self.disconnect()

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None and not self._closing.is_set():
            records, size = item
            try:
                self._deliver_with_retries(records)
            except BaseException as error:
                self._failed(error)
                return
            with self._lock:
                self._buffered -= size
                self._acknowledged += len(records)

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    def _deliver_with_retries(self, records: Sequence[Record]) -> None:
        while True:
            self.check_lease()
            try:
                self.deliver(records)
            except SinkUnavailable as error:
                pause = self._backoff.failed()
                if pause is None:
                    raise
                if self._closing.wait(max(pause, float(error.details.get("retry_after", 0.0)))):
                    raise
            else:
                self._backoff.progressed()
                return

    def _raise_failure(self) -> None:
        failure = self._failure
        if isinstance(failure, TailraceError) and failure.outcome is not Outcome.STOP:
            raise SinkUnavailable(failure.message) from failure
        if failure is not None:
            raise failure
