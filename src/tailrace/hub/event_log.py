"""Events that are made and not yet forgotten: an index for each, read by many at their own pace."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from tailrace.engine.event import Event
from tailrace.errors import TailraceError
from tailrace.token.resume_token import ResumeToken

_SHARED: Final = 16
_SPARE: Final = 4
"""What part of its bytes a log fills before it looks for events that all have read."""
_cluster_time = attrgetter("cluster_time")


class Reader(Protocol):
    """Whoever reads a log."""

    @property
    def index(self) -> int:
        """The index of the event it will read next."""


class Reading(NamedTuple):
    """Events read from a log, and how the log stood at that very moment."""

    events: list[Event]
    end: int
    reached: int
    end_position: ResumeToken
    is_ended: bool
    error: TailraceError | None


class EventLog(ABC):
    """All events behind the time `low`, as many as fit into its bytes; what no reader needs any more is dropped.

    When readers are too slow the oldest events are dropped all the same: such a reader has to find them elsewhere.
    One lock is held while events are made, which may take its time; another one for the moment in which they are
    appended or read, so that readers never wait for a server.
    """

    def __init__(self, low: int, max_bytes: int) -> None:
        self.low = low
        self.reached = low
        """The time up to which all events are here, or were."""
        self.max_bytes = max_bytes
        self.is_broken = False
        """Whether something was dropped before anybody read it: the readers must go elsewhere."""
        self.error: TailraceError | None = None
        self.is_ended = False
        self.readers: set[Reader] = set()
        self.is_costly = False
        """Whether a user's stages are run here: what is not quick of them may take any time."""
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._first = 0
        self._event_bytes = 0
        self._shared: OrderedDict[tuple[int, ...], tuple[Any, int]] = OrderedDict()

    @property
    @abstractmethod
    def has_data(self) -> bool:
        """Whether there is something to make events of, or time has passed."""

    @abstractmethod
    def _make_events(self, *, only_quick: bool) -> bool:
        """Make events of what there is, on one thread at a time; False when that may take its time and should not."""

    def make_events(self) -> None:
        """Make events of what there is. This may ask servers, and so take its time."""
        with self._making:
            self._make_events(only_quick=False)

    def make_events_without_waiting(self) -> bool:
        """Make events if that takes a few milliseconds at most; False when others are at it or it may take longer."""
        if not self._making.acquire(blocking=False):
            return False
        try:
            return self._make_events(only_quick=True)
        finally:
            self._making.release()

    @property
    @abstractmethod
    def end_position(self) -> ResumeToken:
        """Where a stream stands that has come to the end of this log."""

    @property
    def end(self) -> int:
        """The index behind the last event."""
        return self._first + len(self._events)

    def reached_and_end(self) -> tuple[int, int]:
        """Give the time that was reached, and the index behind the last event until then."""
        with self._lock:
            return self.reached, self.end

    def has(self, index: int) -> bool:
        """Return whether the events from an index on are there, or will come."""
        return index >= self._first and not self.is_broken

    def index_after(self, time: int) -> int | None:
        """Give the index of the first event behind a time; None when some of those are gone."""
        with self._lock:
            if self.is_broken or time < self.low:
                return None
            return self._first + bisect_right(self._events, time, key=_cluster_time)

    def size_behind(self, index: int) -> int:
        """Give how many bytes the events from an index on have."""
        with self._lock:
            return sum(len(event.raw) for event in self._events[max(0, index - self._first) :])

    def read(self, index: int, max_events: int | None, max_bytes: int) -> Reading | None:
        """Give events from an index on, at least one whatever its size; None when they are gone."""
        with self._lock:
            if not self.has(index):
                return None
            found = self._events[index - self._first :][:max_events]
            reading = Reading(found, self.end, self.reached, self.end_position, self.is_ended, self.error)
        if sum(len(event.raw) for event in found) <= max_bytes:
            return reading
        size = 0
        for count, event in enumerate(found):
            size += len(event.raw)
            if size > max_bytes and count:
                return reading._replace(events=found[:count])
        return reading

    def shared(self, key: tuple[int, ...]) -> Any:
        """Give what a reader at the same place has made of the same events before, if that is still here."""
        with self._lock:
            found = self._shared.get(key)
        return None if found is None else found[0]

    def share(self, key: tuple[int, ...], made: Any, size: int) -> None:
        """Keep what one reader made, for those who come to the same place next."""
        with self._lock:
            self._shared[key] = made, size
            while len(self._shared) > 1 and (
                len(self._shared) > _SHARED or sum(size for _, size in self._shared.values()) > self.max_bytes // _SPARE
            ):
                self._shared.popitem(last=False)

    def _append(self, events: list[Event], reached: int, *, is_ended: bool) -> None:
        """Take events and the time they reach to, as one step for all who read."""
        with self._lock:
            self.reached = max(self.reached, reached)
            self.is_ended |= is_ended
            self._events += events
            self._event_bytes += sum(len(event.raw) for event in events)
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop what all have read, now and then; and what some have not, when it is too much."""
        if self._event_bytes > self.max_bytes // _SPARE:
            needed = min((reader.index for reader in tuple(self.readers)), default=self.end)
            self._drop(needed - self._first)
        excess, count = self._event_bytes - self.max_bytes, 0
        while excess > 0:
            excess -= len(self._events[count].raw)
            count += 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        if count > 0:
            self.low = self._events[count - 1].cluster_time
            self._event_bytes -= sum(len(event.raw) for event in self._events[:count])
            del self._events[:count]
            self._first += count


Listener: TypeAlias = Callable[[AbstractSet[EventLog]], None]
"""Notified of logs that have data available, or were evicted."""
