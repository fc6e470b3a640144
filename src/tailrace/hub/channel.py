"""A channel: events made once, for all subscribers that asked for the same.

The hub puts the oplog entries that can matter into the channel's inbox. Whoever reads first makes events of them, by
one engine stream; the others find them made. What no reader needs any more is dropped, and when readers are too slow
the oldest events are dropped all the same: such a reader goes back to a scan of its own, and nobody else notices.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.engine.event import Event
from tailrace.engine.images import AddImages
from tailrace.engine.options import StreamSpec
from tailrace.engine.scope import Scope
from tailrace.engine.stream import EngineStream, to_timestamp
from tailrace.errors import TailraceError
from tailrace.oplog.source import OplogBatch

if TYPE_CHECKING:
    from tailrace.token.resume_token import ResumeToken

_NO_LIMIT: Final = 1 << 62
_SHARED: Final = 4
_SPARE: Final = 4
"""What part of its bytes a channel fills before it looks for events that all have read."""
_QUICK_BYTES: Final = 128 * 1024
_IS_COMMAND: Final = b"\x02op\x00\x02\x00\x00\x00c\x00"
"""In an entry: that it is a command, maybe the end of a transaction whose beginning has to be read."""
_cluster_time = attrgetter("cluster_time")


class _Inbox:
    """An oplog of which the hub hands over the entries; it also reads single ones for large transactions."""

    def __init__(self, entry_at: Callable[[int], bytes]) -> None:
        self.entry_at = entry_at
        self._next: deque[OplogBatch] = deque()

    def put(self, batch: OplogBatch) -> None:
        """Let the stream read this batch next."""
        self._next.append(batch)

    def open(self, since: int) -> _Inbox:
        """Read what is put in; the channel sees to it that nothing before `since` is."""
        return self

    def __iter__(self) -> Iterator[OplogBatch]:
        return self

    def __next__(self) -> OplogBatch:
        return self._next.popleft()

    def close(self) -> None:
        """Forget what was not read."""
        self._next.clear()


class Reader(Protocol):
    """Whoever reads a channel."""

    @property
    def index(self) -> int:
        """The index of the event it will read next."""


class Channel:
    """All events behind the time `low` that a spec asks for; read it by index."""

    def __init__(
        self,
        spec: StreamSpec,
        low: int,
        open_stream: Callable[[StreamSpec, _Inbox], EngineStream],
        entry_at: Callable[[int], bytes],
        max_bytes: int,
    ) -> None:
        self.scope: Scope = spec.scope
        self.low = low
        self.reached = low
        """The time up to which entries have become events."""
        self.fed = low
        """The time up to which entries are in the inbox, or were."""
        self.max_bytes = max_bytes
        self.is_broken = False
        """Whether entries were dropped before anybody read them: the readers must go elsewhere."""
        self.error: TailraceError | None = None
        self.is_ended = False
        self._lock = threading.Lock()
        self._inbox_lock = threading.Lock()
        self._entries: list[bytes] = []
        self._entry_bytes = 0
        self._needs_no_lookup = not AddImages.are_asked_for(spec.options)
        self._has_commands = False
        self._events: list[Event] = []
        self._first = 0
        self._event_bytes = 0
        self.shared: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        """What readers that are side by side have made of the same events; see `share`."""
        self._inbox = _Inbox(entry_at)
        since = replace(
            spec.options, start_at_operation_time=to_timestamp(low + 1), resume_after=None, start_after=None
        )
        self._stream = open_stream(replace(spec, options=since, start_token=None), self._inbox)
        self._stream.next_batch(0)  # nothing is read: errors are told from now on as those of later batches
        self.readers: set[Reader] = set()

    # --- filled by the hub

    def feed(self, entry: bytes) -> None:
        """Put an entry into the inbox; too many that nobody reads break the channel."""
        with self._inbox_lock:
            self._has_commands |= _IS_COMMAND in entry
            self._entries.append(entry)
            self._entry_bytes += len(entry)
            if self._entry_bytes > self.max_bytes:
                self.is_broken = True
                self._entries.clear()
                self._entry_bytes = 0

    @property
    def has_news(self) -> bool:
        """Whether entries wait that are no events yet."""
        return bool(self._entries)

    @property
    def is_quick(self) -> bool:
        """Whether events are made from what waits within a millisecond or two: nothing is looked up for them."""
        return self._needs_no_lookup and not self._has_commands and 0 < self._entry_bytes < _QUICK_BYTES

    @property
    def held_bytes(self) -> int:
        """How many bytes of entries and events are held."""
        return self._entry_bytes + self._event_bytes

    # --- emptied by the readers

    def make_events(self) -> None:
        """Make events of what is in the inbox. This may look up images, and so take its time."""
        with self._lock:
            with self._inbox_lock:
                entries, self._entries = self._entries, []
                self._entry_bytes, reached = 0, self.fed
                self._has_commands = False
            if self.is_ended or self.error or self.is_broken:
                return
            if not entries:
                self.reached = max(self.reached, reached)
                return
            self._inbox.put(OplogBatch(entries, reached))
            try:
                made = self._stream.next_batch(None, _NO_LIMIT)
            except TailraceError as error:
                self.error = error
                return
            self._events += made
            self._event_bytes += sum(len(event.raw) for event in made)
            self.is_ended = self._stream.is_closed
            self.reached = max(self.reached, reached)
            self._drop_oldest()

    @property
    def end(self) -> int:
        """The index behind the last event."""
        return self._first + len(self._events)

    @property
    def end_position(self) -> ResumeToken:
        """Where a stream stands that has ended with this channel."""
        return self._stream.post_batch_resume_token

    def has(self, index: int) -> bool:
        """Tell whether the events from an index on are there, or will come."""
        return index >= self._first and not self.is_broken

    def index_after(self, time: int) -> int | None:
        """Give the index of the first event behind a time; None when some of those are gone."""
        with self._lock:
            if self.is_broken or time < self.low:
                return None
            return self._first + bisect_right(self._events, time, key=_cluster_time)

    def read(self, index: int, max_events: int | None, max_bytes: int) -> list[Event] | None:
        """Give events from an index on, at least one whatever its size; None when they are gone."""
        with self._lock:
            if not self.has(index):
                return None
            found = self._events[index - self._first :][:max_events]
        size = 0
        for count, event in enumerate(found):
            size += len(event.raw)
            if size > max_bytes and count:
                return found[:count]
        return found

    def share(self, key: tuple[int, ...], made: Any) -> None:
        """Keep what one reader made, for those who come to the same place next."""
        self.shared[key] = made
        if len(self.shared) > _SHARED:
            self.shared.popitem(last=False)

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


def encode_elements(events: list[Event]) -> bytes:
    """Give events as the elements of a BSON array."""
    return b"".join(part for number, event in enumerate(events) for part in (b"\x03%d\x00" % number, event.raw))
