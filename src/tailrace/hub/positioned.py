"""Streams over all shards whose batches say where each shard stands behind them, for whoever keeps positions.

A watcher gets one token with each event, and goes on behind it on all shards. A producer saves a position with each
batch: beside the merged token it keeps the position of every shard, and each shard goes on behind its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING

from tailrace.engine.event import NEW_SHARD, Event
from tailrace.engine.options import StreamSpec
from tailrace.hub.batch import Batch
from tailrace.hub.merged import MergedSubscription
from tailrace.hub.per_key import PerKeySubscription, of_shards
from tailrace.hub.subscription import Subscription
from tailrace.router.topology import CONFIG
from tailrace.token.resume_token import ResumeToken
from tailrace.token.shard_positions import positions_element

if TYPE_CHECKING:
    from tailrace.hub.cluster import ClusterHub

_sort_key = attrgetter("sort_key")


class PositionedSubscription(MergedSubscription):
    """All shards in the order of their tokens."""

    def __init__(
        self,
        cluster: ClusterHub,
        spec: StreamSpec,
        latest: int,
        now: datetime,
        positions: Mapping[str, ResumeToken],
    ) -> None:
        self._starts = dict(positions)
        self._is_placed = bool(positions)
        self._fed: dict[str, list[Event]] = {}
        self._stood = dict(positions)
        """Behind which event of each shard the stream last stood."""
        super().__init__(cluster, spec, latest, now)

    def _subscribe(self, name: str, since: int, after: ResumeToken | None = None) -> Subscription:
        self._fed.setdefault(name, [])
        return super()._subscribe(name, since, after or self._starts.pop(name, None))

    def _checks(self) -> Iterator[Event | None]:
        """Look for the position on the merged stream only where the shards were not told theirs."""
        return self._given() if self._is_placed else super()._checks()

    def _feed(self, name: str, part: Subscription, events: list[Event]) -> None:
        self._fed[name] += events
        super()._feed(name, part, events)

    def _remove(self, name: str) -> None:
        super()._remove(name)
        del self._fed[name]
        self._stood.pop(name, None)

    def _batch(self, max_events: int | None, max_bytes: int) -> Batch:
        batch = super()._batch(max_events, max_bytes)
        vector = {name: self._stands_at(name, batch.position) for name in self._parts if name != CONFIG}
        return Batch(batch.events, batch.position, batch.elements, positions_element(vector))

    def _stands_at(self, name: str, merged: ResumeToken) -> ResumeToken:
        """Give a shard's own position: behind its last event at the time of the merged one, or just before that time.

        An older event would be as exact, but one that a quiet shard gave long ago ages out of its oplog.
        """
        fed = self._fed[name]
        count = bisect_right(fed, merged.key, key=_sort_key)
        if count:
            self._stood[name] = ResumeToken.parse(fed[count - 1].token)
            del fed[:count]
        mark = ResumeToken.high_water_mark(merged.cluster_time)
        return max(mark, self._stood.get(name, mark))


class PositionedPerKeySubscription(PerKeySubscription):
    """Each shard at its own pace; a batch is what one shard gave at once, and its events keep their own tokens."""

    def __init__(
        self,
        cluster: ClusterHub,
        spec: StreamSpec,
        latest: int,
        now: datetime,
        positions: Mapping[str, ResumeToken],
    ) -> None:
        self._runs: deque[tuple[int, dict[str, ResumeToken]]] = deque()
        """How many of the waiting events belong together, and where the shards stand behind them."""
        super().__init__(cluster, spec, latest, now, positions)

    def _feed(self, name: str, part: Subscription, events: list[Event]) -> None:
        skipped = b"" if self._skipped is None else self._skipped.key
        kept = [event for event in events if event.operation_type != NEW_SHARD and event.sort_key > skipped]
        self._vector[name] = max(self._vector[name], part.position)
        if kept:
            self._waiting += kept
            self._runs.append((len(kept), dict(self._vector)))
        self._merge.feed(name, [], part.promise)

    def _batch(self, max_events: int | None, max_bytes: int) -> Batch:
        """Give the next run whole, since there is no position inside of it; the one position is the least of all."""
        count, vector = self._runs.popleft() if self._runs else (0, self._vector)
        events, self._waiting = self._waiting[:count], self._waiting[count:]
        self.position = max(self.position, min(vector.values()))
        return Batch(events, self.position, b"", positions_element(of_shards(vector)))
