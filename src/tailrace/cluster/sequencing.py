"""In which order events of shards leave a merged stream, and which position stands behind them.

Strict order is that of the resume tokens: one token is the position of the stream. Order per key lets each shard's
events leave at once, since a document is on one shard at a time. One token is then no position of the stream,
for the shards have different ones. The tokens therefore carry the position of each shard in a field `shards`,
which servers ignore, as every field of a token that they do not know. Where a token is used without
that field, the stream goes on behind that token on each shard.

A watcher gets one token with each event. A producer saves a position with each batch: for it the position of every
shard stands beside the batch, and each shard goes on behind its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

from tailrace import raw
from tailrace.cluster.merge import Order
from tailrace.cluster.topology import CONFIG
from tailrace.engine.event import NEW_SHARD, Event
from tailrace.event import with_token_fields
from tailrace.token.resume_token import ResumeToken
from tailrace.token.shard_positions import FIELD, positions_element

_sort_key = attrgetter("sort_key")


class Limits(NamedTuple):
    """How much a batch may hold: an event at least, whatever its size."""

    max_events: int | None
    max_bytes: int


class Cut(NamedTuple):
    """What leaves next: so many of the events that may, and where the stream stands behind them."""

    events: int
    position: ResumeToken
    vector: bytes = b""
    is_end: bool = False
    """Whether the last one is an invalidate, behind which nothing comes."""


class ByToken:
    """Strict order, for watchers: the position is the last event's token, or what the merge has come to."""

    order = Order.STRICT
    has_positions = False
    """Whether each shard has its own start position, so that nothing has to be searched on the merged stream."""
    is_shareable = True
    """Whether what leaves is the same for all who ask for the same."""

    def start_of(self, shard: str) -> ResumeToken | None:
        """Give where a shard was said to go on, once; None for the time of the stream."""
        return None

    def opened(self, shard: str, position: ResumeToken) -> None:
        """Note that a shard takes part from a position on."""

    def removed(self, shard: str) -> None:
        """Note that a shard has left."""

    def passed(self, shard: str, events: list[Event], position: ResumeToken) -> list[Event]:
        """Note the events of a shard before a position, and give those that go into the merge."""
        return events

    def cut(self, ready: list[Event], limits: Limits, before: ResumeToken, merged: ResumeToken) -> Cut:
        """Decide what of the ready events leaves; the stream stood `before`, and the merge has come to `merged`."""
        count = _fitting(ready, limits)
        if not count:
            return Cut(0, max(before, merged))
        return Cut(count, ResumeToken.parse(ready[count - 1].token), is_end=_is_end(ready[count - 1]))


class ByTokenWithPositions(ByToken):
    """Strict order, for producers: each batch has the position of every shard behind it."""

    is_shareable = False

    def __init__(self, positions: Mapping[str, ResumeToken]) -> None:
        self.has_positions = bool(positions)
        self._starts = dict(positions)
        self._stood = dict(positions)
        """Behind which event of each shard the stream last stood."""
        self._passed: dict[str, list[Event]] = {}

    def start_of(self, shard: str) -> ResumeToken | None:
        """Give the position that was saved for a shard, once."""
        return self._starts.pop(shard, None)

    def opened(self, shard: str, position: ResumeToken) -> None:
        """Begin to note what it gives."""
        self._passed.setdefault(shard, [])

    def removed(self, shard: str) -> None:
        """Forget its position."""
        del self._passed[shard]
        self._stood.pop(shard, None)

    def passed(self, shard: str, events: list[Event], position: ResumeToken) -> list[Event]:
        """Let all go into the merge, and note whose they are."""
        self._passed[shard] += events
        return events

    def cut(self, ready: list[Event], limits: Limits, before: ResumeToken, merged: ResumeToken) -> Cut:
        """Give what fits, with the shards' positions."""
        cut = super().cut(ready, limits, before, merged)
        vector = {shard: self._stands_at(shard, cut.position) for shard in self._passed}
        return cut._replace(vector=_vector_element(vector))

    def _stands_at(self, shard: str, merged: ResumeToken) -> ResumeToken:
        """Give a shard's own position: behind its last event at the time of the merged one, or just before that time.

        An older event would be as exact, but one that a quiet shard gave long ago ages out of its oplog.
        """
        passed = self._passed[shard]
        count = bisect_right(passed, merged.key, key=_sort_key)
        if count:
            self._stood[shard] = ResumeToken.parse(passed[count - 1].token)
            del passed[:count]
        mark = ResumeToken.high_water_mark(merged.cluster_time)
        return max(mark, self._stood.get(shard, mark))


class PerKey(ByToken):
    """Order per document, for watchers: each event's token has the positions of all shards behind it."""

    order = Order.PER_KEY
    has_positions = True
    is_shareable = False

    def __init__(self, positions: Mapping[str, ResumeToken], token: ResumeToken | None) -> None:
        """Go on from the shards' positions or, when they are not known, behind the token on each of them."""
        self._starts = dict(positions)
        self._skipped = b"" if positions or token is None else token.key
        self._positions: dict[str, ResumeToken] = {}

    def start_of(self, shard: str) -> ResumeToken | None:
        """Give the position that the token had for a shard, once."""
        return self._starts.pop(shard, None)

    def opened(self, shard: str, position: ResumeToken) -> None:
        """Note where a shard begins."""
        self._positions[shard] = position

    def removed(self, shard: str) -> None:
        """Forget its position."""
        self._positions.pop(shard, None)

    def passed(self, shard: str, events: list[Event], position: ResumeToken) -> list[Event]:
        """Put the positions of all shards into the events' tokens."""
        given = []
        for event in events:
            self._positions[shard] = ResumeToken.parse(event.token)
            if self._is_new(event):
                given.append(event._replace(raw=with_token_fields(event.raw, _vector_element(self._positions))))
        self._positions[shard] = max(self._positions[shard], position)
        return given

    def cut(self, ready: list[Event], limits: Limits, before: ResumeToken, merged: ResumeToken) -> Cut:
        """Give what fits, with the positions behind it; the one position is what no shard is below."""
        count = _fitting(ready, limits)
        vector = _vector_element(self._positions) if count == len(ready) else _positions_in(ready[count - 1].token)
        return Cut(count, max(before, merged), vector, is_end=count > 0 and _is_end(ready[count - 1]))

    def _is_new(self, event: Event) -> bool:
        """Whether an event is for users, and behind the one token that the stream was resumed with."""
        return event.operation_type != NEW_SHARD and event.sort_key > self._skipped


class PerKeyWithPositions(PerKey):
    """Order per document, for producers: a batch is what one shard gave at once, and its events keep their tokens."""

    def __init__(self, positions: Mapping[str, ResumeToken], token: ResumeToken | None) -> None:
        super().__init__(positions, token)
        self._runs: deque[tuple[int, dict[str, ResumeToken]]] = deque()
        """How many of the ready events belong together, and where the shards stand behind them."""

    def passed(self, shard: str, events: list[Event], position: ResumeToken) -> list[Event]:
        """Note which events belong together."""
        given = [event for event in events if self._is_new(event)]
        self._positions[shard] = max(self._positions[shard], position)
        if given:
            self._runs.append((len(given), dict(self._positions)))
        return given

    def cut(self, ready: list[Event], limits: Limits, before: ResumeToken, merged: ResumeToken) -> Cut:
        """Give the next run whole, since there is no position inside of it; the one position is the least of all."""
        count, positions = self._runs.popleft() if self._runs else (0, self._positions)
        return Cut(count, max(before, min(positions.values())), _vector_element(positions))


def _fitting(events: list[Event], limits: Limits) -> int:
    """Count the events that fit into a batch, the last one an invalidate if there is one."""
    size = count = 0
    for event in events[: limits.max_events]:
        size += len(event.raw)
        if size > limits.max_bytes and count:
            break
        count += 1
        if _is_end(event):
            break
    return count


def _is_end(event: Event) -> bool:
    """Whether nothing comes behind an event."""
    return event.operation_type == "invalidate"


def _vector_element(positions: Mapping[str, ResumeToken]) -> bytes:
    """Give the positions of shards for a token, without the config servers', who find their place by the time."""
    return positions_element({shard: position for shard, position in positions.items() if shard != CONFIG})


def _positions_in(token: bytes) -> bytes:
    found = raw.field(token, FIELD.encode())
    return b"" if found is None else raw.element(found.kind, FIELD.encode(), found.data)
