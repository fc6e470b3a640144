"""A channel: events made once, for all subscribers that asked for the same.

The hub puts the oplog entries that can matter into the channel's inbox. Whoever reads first makes events of them, by
one engine stream; the others find them made. A reader that is too slow goes back to a scan of its own, and nobody else
notices.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tailrace.engine.event import Event
from tailrace.engine.images import AddImages
from tailrace.engine.options import StreamSpec
from tailrace.engine.scope import Scope
from tailrace.engine.stream import EngineStream
from tailrace.engine.user_stages import quick_bytes
from tailrace.errors import TailraceError
from tailrace.hub.event_log import EventLog
from tailrace.oplog.source import OplogBatch
from tailrace.raw.cluster_time import ClusterTime

if TYPE_CHECKING:
    from tailrace.hub.staged import StagedChannel
    from tailrace.token.resume_token import ResumeToken

_NO_LIMIT: Final = 1 << 62
_QUICK_BYTES: Final = 128 * 1024
_IS_COMMAND: Final = b"\x02op\x00\x02\x00\x00\x00c\x00"
"""In an entry: that it is a command, maybe the end of a transaction whose beginning has to be read."""


class _Inbox:
    """An oplog of which the hub hands over the entries; it also reads single ones for large transactions."""

    def __init__(self, entry_at: Callable[[int], bytes]) -> None:
        self.entry_at = entry_at
        self._next: deque[OplogBatch] = deque()

    @property
    def has_data(self) -> bool:
        """Whether there is a batch that the stream has not read."""
        return bool(self._next)

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


class Channel(EventLog):
    """All events behind the time `low` that a spec asks for; read it by index."""

    def __init__(
        self,
        spec: StreamSpec,
        low: int,
        open_stream: Callable[[StreamSpec, _Inbox], EngineStream],
        entry_at: Callable[[int], bytes],
        max_bytes: int,
        *,
        looks_up: bool = False,
    ) -> None:
        """Begin behind a time; `looks_up` says that servers are asked while events are made."""
        super().__init__(low, max_bytes)
        self.scope: Scope = spec.scope
        self.fed = low
        """The time up to which entries are in the inbox, or were."""
        self.derived: set[StagedChannel] = set()
        """Those that run a user's stages on these events."""
        self._inbox_lock = threading.Lock()
        self._entries: list[bytes] = []
        self._entry_bytes = 0
        self.is_costly = bool(spec.stages)
        self._takes_time = looks_up or AddImages.are_asked_for(spec.options)
        self._quick_bytes = quick_bytes(spec.stages) if spec.stages else _QUICK_BYTES
        self._has_commands = False
        self._taken = low
        """The time up to which entries were taken out of the inbox."""
        self._inbox = _Inbox(entry_at)
        since = replace(
            spec.options, start_at_operation_time=ClusterTime(low).next.timestamp, resume_after=None, start_after=None
        )
        self._stream = open_stream(replace(spec, options=since, start_token=None), self._inbox)
        self._stream.next_batch(0)  # nothing is read: from now on errors are raised as those of later batches

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
    def has_data(self) -> bool:
        """Whether entries wait that are no events yet, or others were read that give none."""
        return bool(self._entries) or self.fed > self.reached

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of entries and events are held."""
        return self._entry_bytes + self._event_bytes

    # --- emptied by the readers

    def _make_events(self, *, only_quick: bool) -> bool:
        """Make events of what is in the inbox. This may look up images, and so take its time."""
        with self._inbox_lock:
            if only_quick and not self._is_quick():
                return False
            if not self._stream.is_unfinished:
                self._take_entries()
        if self.is_ended or self.error or self.is_broken:
            return True
        made: list[Event] = []
        if self._stream.is_unfinished or self._inbox.has_data:
            try:
                made = self._stream.next_batch(None, _NO_LIMIT)
            except TailraceError as error:
                self._append(list(self._stream.unfinished), self.reached, is_ended=False)
                self.error = error
                return True
        reached = self._taken
        if self._stream.is_unfinished:  # of the last one's time there may be more
            reached = made[-1].cluster_time - 1 if made else self.reached
        self._append(made, reached, is_ended=self._stream.is_closed)
        return True

    def _take_entries(self) -> None:
        if self._entries:
            self._inbox.put(OplogBatch(self._entries, self.fed))
            self._entries = []
        self._entry_bytes, self._taken = 0, self.fed
        self._has_commands = False

    def _is_quick(self) -> bool:
        """Return whether events are made of what waits within a millisecond or two: nothing is looked up for them."""
        if self._stream.is_unfinished:
            return False
        if not self._entries:
            return True
        return not self._takes_time and not self._has_commands and self._entry_bytes < self._quick_bytes

    @property
    def end_position(self) -> ResumeToken:
        """Where a stream stands that has ended with this channel."""
        return self._stream.post_batch_resume_token
