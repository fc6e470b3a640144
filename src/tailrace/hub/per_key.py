"""One subscriber to a whole cluster that needs order per document only: no shard waits for another.

A document is on one shard at a time, so each shard's events may leave at once. One token then does not tell where the
stream stands, for the shards are at different places. The tokens therefore carry the position of each shard in a
field `shards`, which servers leave aside as they do with every field of a token that they do not know. Where a token
is used without that field, the stream goes on behind that token on each shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from tailrace import raw
from tailrace.engine.event import NEW_SHARD, Event
from tailrace.engine.options import StreamSpec
from tailrace.hub.batch import Batch
from tailrace.hub.merged import MergedSubscription
from tailrace.hub.subscription import Subscription
from tailrace.router.merge import Order
from tailrace.router.topology import CONFIG
from tailrace.token.resume_token import ResumeToken
from tailrace.token.shard_positions import FIELD, positions_element

if TYPE_CHECKING:
    from tailrace.hub.cluster import ClusterHub


class PerKeySubscription(MergedSubscription):
    """A change stream over all shards, in which each shard goes at its own pace."""

    ORDER = Order.PER_KEY

    def __init__(
        self,
        cluster: ClusterHub,
        spec: StreamSpec,
        latest: int,
        now: datetime,
        positions: Mapping[str, ResumeToken],
    ) -> None:
        self._starts = dict(positions)
        self._skipped = None if positions else spec.options.token
        self._vector: dict[str, ResumeToken] = {}
        super().__init__(cluster, spec, latest, now)

    def _subscribe(self, name: str, since: int, after: ResumeToken | None = None) -> Subscription:
        start = after or self._starts.pop(name, None)
        part = super()._subscribe(name, since, start)
        self._vector[name] = start or part.position
        return part

    def _feed(self, name: str, part: Subscription, events: list[Event]) -> None:
        """Let a shard's events go, each with the positions of all shards behind it."""
        skipped = self._skipped
        for event in events:
            self._vector[name] = ResumeToken.parse(event.token)
            if event.operation_type == NEW_SHARD or (skipped is not None and event.sort_key <= skipped.key):
                continue
            self._waiting.append(event._replace(raw=_with_positions(event.raw, self._vector_element())))
        if part.position > self._vector[name]:
            self._vector[name] = part.position
        self._merge.feed(name, [], part.promise)

    def _take(self) -> None:
        """Work on topology changes as soon as they are known; the events have left already."""
        for change in self._topology_changes:
            self._change_topology(change)
        self._topology_changes.clear()
        self._merge.take()

    def _feed_topology_change(self) -> None:
        """Nothing waits for the config servers."""

    def _remove(self, name: str) -> None:
        super()._remove(name)
        self._vector.pop(name, None)

    def _batch(self, max_events: int | None, max_bytes: int) -> Batch:
        """Give a batch with the positions behind it; the one position is what no shard is below."""
        before = self.position
        batch = super()._batch(max_events, max_bytes)
        self.position = max(before, self._merge.position)
        vector = self._vector_element() if not self._waiting else _positions_in(batch.events[-1].token)
        return Batch(batch.events, self.position, batch.elements, vector)

    def _vector_element(self) -> bytes:
        return positions_element(of_shards(self._vector))


def of_shards(vector: Mapping[str, ResumeToken]) -> dict[str, ResumeToken]:
    """Leave the config servers out, who find their place by the time."""
    return {name: position for name, position in vector.items() if name != CONFIG}


def _with_positions(event: bytes, vector: bytes) -> bytes:
    """Put the positions of the shards into an event's resume token."""
    span = raw.find(event, b"_id")
    if span is None:
        return event
    _, start, end = span
    token = raw.append(event[start:end], vector)
    return raw.document(event[4:start], token, event[end:-1])


def _positions_in(token: bytes) -> bytes:
    found = raw.field(token, FIELD.encode())
    return b"" if found is None else raw.element(found.kind, FIELD.encode(), found.data)
