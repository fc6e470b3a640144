"""A source in a thread of its own: polled again and again, with the last good value and the reason when it fails."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tailrace.errors import TailraceError
from tailrace.logs import get_logger
from tailrace.owned import OwnedThread
from tailrace.retry import Backoff, RetryPolicy
from tailrace.settings import masked

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_log = get_logger("tailrace.dashboard")
_LONGEST_PAUSE = 5.0
_SECONDS_TO_ANSWER = 8.0
"""A poll that takes longer than this is reported as hanging; the thread goes on waiting for it."""
_LONGEST_REASON = 240
_LONGEST_TEXT = 2_000


class Source(Protocol[T_co]):
    """Something that can be polled."""

    name: str

    def poll(self) -> T_co:
        """Give what is there now; opens what it needs, and raises when it cannot."""

    def close(self) -> None:
        """Give connections back; the next poll opens them again."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """The outcome of the newest poll."""

    value: T | None = None
    """What the last good poll gave, which may be old when there is a problem."""
    problem: str | None = None
    at: float | None = None
    took: float | None = None
    good_at: float | None = None

    @property
    def is_good(self) -> bool:
        """Whether the newest poll succeeded."""
        return self.problem is None and self.value is not None

    @property
    def fresh(self) -> T | None:
        """The value, unless it is old."""
        return self.value if self.problem is None else None


class PolledSource(Generic[T]):
    """Polls a source every so often, in a daemon thread."""

    def __init__(self, source: Source[T], every_seconds: float = 1.0) -> None:
        self.source = source
        self._every = every_seconds
        self._stop = threading.Event()
        self._reading: Reading[T] = Reading()
        self._polling_since: float | None = None
        self._thread = OwnedThread(
            self._run, name=f"tailrace-dashboard-{source.name}", on_death=lambda _: _LONGEST_PAUSE
        )

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; `join` waits for it."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        """Wait for the end, for a while: a server that hangs must not keep the dashboard from ending."""
        self._thread.join(seconds)

    def reading(self) -> Reading[T]:
        """Give the outcome of the newest poll, or say that one hangs."""
        reading, since = self._reading, self._polling_since
        waited = 0.0 if since is None else time.time() - since
        if waited > _SECONDS_TO_ANSWER:
            return Reading(reading.value, f"no answer for {waited:.0f} s", reading.at, waited, reading.good_at)
        return reading

    def _run(self) -> None:
        outage = Backoff(RetryPolicy(2 * self._every, longest=_LONGEST_PAUSE, budget=math.inf))
        while not self._stop.is_set():
            started = self._polling_since = time.time()
            try:
                value = self.source.poll()
                took = time.time() - started
                if self._reading.problem is not None:
                    _log.info("source_recovered", source=self.source.name)
                self._reading = Reading(value, None, started, took, started)
                outage.progressed()
                pause = self._every
            except Exception as error:
                pause = outage.failed() or self._every
                self._failed(error, started)
            self._polling_since = None
            spent = time.time() - started
            self._stop.wait(max(0.0, pause - spent))
        self._close()

    def _failed(self, error: Exception, started: float) -> None:
        """Keep the last value; an outage is logged once, whatever different words its errors have."""
        before, reason = self._reading, reason_of(error)
        log = _log.info if before.problem is None else _log.debug
        log("source_failed", source=self.source.name, reason=reason)
        self._reading = Reading(before.value, reason, started, time.time() - started, before.good_at)
        self._close()

    def _close(self) -> None:
        try:
            self.source.close()
        except Exception as error:
            _log.debug("source_not_closed", source=self.source.name, reason=reason_of(error))


def reason_of(error: BaseException) -> str:
    """Give one line about an error that may be shown to anybody: no password, no traceback."""
    text = error.message if isinstance(error, TailraceError) else str(error) or type(error).__name__
    line = masked(text[:_LONGEST_TEXT]).strip().splitlines()[0] if text.strip() else type(error).__name__
    line = line.partition(" (configured timeouts")[0]
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"
