"""A k-way merge of shard streams in the order of their resume tokens.

Each shard gives events in order, and with them its high-water mark: a token below which it will give nothing any more
(that of its last event, or one of a bare time; the server calls it the promised minimum sort key). An event may leave
when no shard can give a smaller one, that is, when it is not above the smallest mark. There the merged stream
stands once everything up to it has left.

The merge is pure: it is fed, it is asked, and the time is passed in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Final, Generic, Protocol, TypeVar

from tailrace.token.resume_token import ResumeToken

MAX_QUEUED_BYTES: Final = 32 * 1024 * 1024
"""How many bytes of one shard may wait for the others before it is not read on."""


class Sortable(Protocol):
    """What the merge needs to know of an event."""

    @property
    def sort_key(self) -> bytes:
        """The resume token's KeyString."""

    @property
    def token(self) -> bytes:
        """The resume token, as BSON."""

    @property
    def raw(self) -> bytes:
        """The event's bytes."""


BEGINNING: Final = ResumeToken(b"")
"""Before every position."""

E = TypeVar("E", bound=Sortable)
_key = itemgetter(0)


class Order(Enum):
    """How strictly events of different shards are ordered."""

    STRICT = "strict"
    """By resume token, as mongos does."""
    PER_KEY = "per-key"
    """Each shard's events at once: a document's events stay in order, since one shard has them all."""


@dataclass(frozen=True, slots=True)
class ShardBacklog:
    """Where one shard stands in the merge, and what it does to the others."""

    shard: str
    high_water_mark: ResumeToken
    queued_events: int
    queued_bytes: int
    blocks_merge: bool
    """Whether events of other shards wait for this one."""
    blocking_seconds: float
    """For how many seconds they have been waiting for it."""


@dataclass(slots=True)
class _Shard(Generic[E]):
    """The events of one shard that have not left yet, and its high-water mark."""

    high_water_mark: ResumeToken
    events: list[tuple[bytes, E]] = field(default_factory=list)
    """Each with its sort key, which is made once."""
    queued_bytes: int = 0
    blocking_since: float | None = None
    is_leaving: bool = False

    def take_up_to(self, key: bytes) -> list[tuple[bytes, E]]:
        """Give and forget the events that are not above the key."""
        count = bisect_right(self.events, key, key=_key)
        taken = self.events[:count]
        del self.events[:count]
        self.queued_bytes -= sum([len(event.raw) for _, event in taken])
        return taken


class Merge(Generic[E]):
    """Merges the events of several shards; shards may come and go while it runs."""

    def __init__(self, order: Order = Order.STRICT, *, max_queued_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._order = order
        self._max_queued_bytes = max_queued_bytes
        self._shards: dict[str, _Shard[E]] = {}
        self._ready: deque[E] = deque()
        self.position = BEGINNING
        """Where the merged stream stands: everything below it was handed out, nothing below it will come."""

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that take part, those that are being drained included."""
        return tuple(self._shards)

    def add(self, shard: str, high_water_mark: ResumeToken) -> None:
        """Let a shard take part from a high-water mark on.

        The merge never goes back: what a new shard has below the position must have been read elsewhere.
        """
        if shard in self._shards:
            raise ValueError(f"shard {shard} takes part already")
        self._shards[shard] = _Shard(max(high_water_mark, self.position))

    def remove(self, shard: str) -> None:
        """Let a shard leave: what it has given still comes out, in its place, and nobody waits for more."""
        self._shards[shard].is_leaving = True
        self._collect()

    def feed(self, shard: str, events: Sequence[E], high_water_mark: ResumeToken) -> None:
        """Take the next events of a shard, in its order, and its high-water mark after them."""
        queue = self._shards[shard]
        queue.events += [(event.sort_key, event) for event in events]
        queue.queued_bytes += sum([len(event.raw) for event in events])
        if high_water_mark > queue.high_water_mark:
            queue.high_water_mark = high_water_mark
        self._collect()

    def may_read(self, shard: str) -> bool:
        """Whether the shard may be read further: not when it has left, or too much of it waits for others."""
        queue = self._shards.get(shard)
        return queue is not None and queue.queued_bytes < self._max_queued_bytes

    def take(self, max_events: int | None = None) -> list[E]:
        """Hand out events that may leave, in order; the position is then behind the last of them."""
        ready = self._ready
        if max_events is None or len(ready) <= max_events:
            taken = list(ready)
            ready.clear()
            self.position = max(self.position, self._limit())
        else:
            taken = [ready.popleft() for _ in range(max_events)]
        if taken and self._order is Order.STRICT and taken[-1].sort_key > self.position.key:
            self.position = ResumeToken.parse(taken[-1].token)
        return taken

    @property
    def newest_waiting(self) -> ResumeToken | None:
        """The position that all shards must have passed before nothing waits any more; None when nothing does."""
        waiting = [shard.events[-1] for shard in self._shards.values() if shard.events]
        return ResumeToken.parse(max(waiting, key=_key)[1].token) if waiting else None

    def backlogs(self, now: float) -> list[ShardBacklog]:
        """Show where each shard stands, and for how long it has held the others back."""
        waiting = self._waiting()
        limit = self._limit()
        shown = []
        for name, shard in self._shards.items():
            others_wait = any(other != name for other in waiting)
            blocks_merge = others_wait and shard.high_water_mark == limit and not shard.is_leaving
            if not blocks_merge:
                shard.blocking_since = None
            elif shard.blocking_since is None:
                shard.blocking_since = now
            blocking_seconds = 0.0 if shard.blocking_since is None else now - shard.blocking_since
            shown.append(
                ShardBacklog(
                    name, shard.high_water_mark, len(shard.events), shard.queued_bytes, blocks_merge, blocking_seconds
                )
            )
        return shown

    def _waiting(self) -> list[str]:
        """Name the shards that have events which may not leave yet."""
        return [name for name, shard in self._shards.items() if shard.events]

    def _limit(self) -> ResumeToken:
        """Give the smallest high-water mark of the shards that may still give something."""
        high_water_marks = [shard.high_water_mark for shard in self._shards.values() if not shard.is_leaving]
        if high_water_marks:
            return min(high_water_marks)
        return max((shard.high_water_mark for shard in self._shards.values()), default=self.position)

    def _collect(self) -> None:
        """Move what may leave now into the queue of ready events."""
        limit = self._limit().key if self._order is Order.STRICT else None
        leaving: list[tuple[bytes, E]] = []
        for shard in self._shards.values():
            leaving += shard.take_up_to(shard.high_water_mark.key if limit is None else limit)
        if limit is not None:
            leaving.sort(key=_key)  # it finds the shards' runs and merges them, in C
        self._ready.extend([event for _, event in leaving])
        drained = [name for name, shard in self._shards.items() if shard.is_leaving and not shard.events]
        for name in drained:
            del self._shards[name]
