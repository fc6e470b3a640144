"""All shards as one stream: a subscription on each of them, merged in the order of their tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

import bson

from tailrace.engine.event import NEW_SHARD, Event
from tailrace.engine.options import ChangeStreamOptions, StreamSpec
from tailrace.engine.resumability import EnsurePositionPresent, SkipToPosition
from tailrace.engine.scope import Scope
from tailrace.engine.stream import MAX_BATCH_BYTES, to_int, to_timestamp
from tailrace.engine.user_stages import are_quick
from tailrace.errors import ServerUnreachable
from tailrace.hub.batch import Batch
from tailrace.hub.channel import encode_elements
from tailrace.hub.subscription import Subscription
from tailrace.router.merge import Hold, Merge, Order
from tailrace.router.topology import CONFIG, Shard
from tailrace.token.resume_token import ResumeToken, TokenKind

if TYPE_CHECKING:
    from tailrace.hub.cluster import ClusterHub
    from tailrace.hub.event_log import EventLog

_SHARDS: Final = StreamSpec(Scope.of_collection("config", "shards"))
_POLLED_EVENTS: Final = 1_000
_NO_LIMIT: Final = 1 << 62


class MergedSubscription:
    """A change stream over all shards. Not for several threads at once."""

    ORDER = Order.STRICT

    def __init__(self, cluster: ClusterHub, spec: StreamSpec, latest: int, now: datetime) -> None:
        self._cluster = cluster
        self._spec = spec
        self._latest = latest
        self._now = now
        self._since = _start_time(spec, latest)
        self._merge: Merge[Event] = Merge(self.ORDER)
        self._parts: dict[str, Subscription] = {}
        self._waiting: list[Event] = []
        self._topology_changes: deque[Event] = deque()
        """What the config servers told and the merge has not come to yet; the first one is in the merge."""
        self.is_closed = False
        self.holds_something = False
        """Whether events of some shards wait for others."""
        self.polled_events = _POLLED_EVENTS
        """How many events of a shard are read at once."""
        self.position = spec.options.token or ResumeToken.high_water_mark(to_timestamp(self._since))
        self._incoming: list[Event | None] = []
        self._search: EnsurePositionPresent | None = None
        self._checked = self._checks()
        for name in cluster.shards:
            self._add(name, self._since)

    # --- what it shows: to other threads too, while one reads

    @property
    def namespace(self) -> str:
        """What it watches, as a server's cursor names it."""
        return self._spec.scope.namespace

    @property
    def position_time(self) -> int:
        """The cluster time of the position."""
        return to_int(self.position.cluster_time)

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that take part at this place of the stream."""
        return tuple(self._parts)

    @property
    def positions(self) -> dict[str, ResumeToken]:
        """The position of each shard: all that it has given is in the merge, or was handed out."""
        return {name: part.position for name, part in tuple(self._parts.items())}

    @property
    def holds(self) -> list[Hold]:
        """Where each shard stands in the merge, and for how long it has held the others back."""
        return self._merge.holds(time.monotonic())

    @property
    def channels(self) -> tuple[EventLog, ...]:
        """The channels it reads from."""
        return tuple(channel for part in tuple(self._parts.values()) if (channel := part.channel) is not None)

    def poll_made(self, max_events: int | None, max_bytes: int) -> Batch | None:
        """Give events from memory alone: never, for a new shard may have to be opened."""
        return None

    @property
    def is_costly(self) -> bool:
        """Whether it has stages that may take their time."""
        return not are_quick(self._spec.stages)

    @property
    def is_level(self) -> bool:
        """Whether others stand beside it: never, for it is read by one."""
        return False

    @property
    def is_catching_up(self) -> bool:
        """Whether some shard is still read by a scan of this stream's own."""
        return any(part.is_catching_up for part in tuple(self._parts.values()))

    @property
    def has_reached_opening(self) -> bool:
        """Whether all that had happened when it was opened has been read; a router never waits for that."""
        return True

    @property
    def has_news(self) -> bool:
        """Whether the next `poll` may find something."""
        parts = tuple(self._parts.items())
        return bool(self._waiting) or any(part.has_news for name, part in parts if self._wants(name))

    @property
    def is_settled(self) -> bool:
        """Whether all that was read has been given, and the position it began at was found."""
        return not self._waiting and not self.is_closed and (self._search is None or self._search.is_met)

    @property
    def reached(self) -> ResumeToken:
        """How far it has come: the position, or further when the shards have promised that nothing is between."""
        return self.position if self._waiting else max(self.position, self._merge.position)

    # --- reading

    def poll(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES) -> Batch:
        """Give the events that may leave now, without waiting for more."""
        if self.is_closed or max_events == 0:
            return Batch([], self.position, b"")
        try:
            self._read_on()
            return self._batch(max_events, max_bytes)
        except BaseException:
            self.close()
            raise

    def take(self) -> list[Event]:
        """Give the events that may leave now, up to an invalidate, for whoever makes batches of them."""
        if self.is_closed:
            return []
        try:
            self._read_on()
            return self._events(None, _NO_LIMIT)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self.is_closed = True
        for part in self._parts.values():
            part.close()
        self._cluster.forget(self)

    def _read_on(self) -> None:
        if not self._waiting:
            self._read_shards()
            self._take()
            self._ask_for_promises()

    def _read_shards(self) -> None:
        for name, part in list(self._parts.items()):
            removed_by = self._cluster.removed_by(name)
            if removed_by is not None and to_int(part.promise.cluster_time) > removed_by:
                self._remove(name)
                continue
            if not self._wants(name):
                continue
            try:
                batch = part.poll(self.polled_events)
            except ServerUnreachable:
                # A shard that is away stalls the others: its subscription is opened again where it stood.
                self._parts[name] = self._subscribe(name, to_int(part.position.cluster_time), part.position)
                continue
            if name == CONFIG and batch.events and self._cluster.follows_config:
                self._topology_changes.extend(batch.events)
                self._feed_topology_change()
            else:
                self._feed(name, part, batch.events)

    def _wants(self, name: str) -> bool:
        """Whether a shard may be read on: others may have to come after it first."""
        return self._merge.wants(name) and not (name == CONFIG and self._topology_changes)

    def _feed(self, name: str, part: Subscription, events: list[Event]) -> None:
        self._merge.feed(name, events, part.promise)

    def _ask_for_promises(self) -> None:
        """Have the shards that hold others back come further."""
        waiting = self._merge.newest_waiting
        self.holds_something = waiting is not None
        if waiting is not None:
            self._cluster.want(to_int(waiting.cluster_time))

    def _feed_topology_change(self) -> None:
        """Let the next change in, and promise no more than that: what lies behind it may need another shard."""
        if self._topology_changes:
            change = self._topology_changes[0]
            self._merge.feed(CONFIG, [change], ResumeToken.parse(change.token))

    def _take(self) -> None:
        """Let what may leave go through the checks of a resumed stream; topology changes are worked on here."""
        for event in self._merge.take():
            if self._topology_changes and event is self._topology_changes[0]:
                self._change_topology(event)
                self._topology_changes.popleft()
                self._feed_topology_change()
            elif event.operation_type != NEW_SHARD:
                self._incoming.append(event)
        self._incoming.append(None)
        while (checked := next(self._checked)) is not None:
            self._waiting.append(checked)

    def _batch(self, max_events: int | None, max_bytes: int) -> Batch:
        events = self._events(max_events, max_bytes)
        return Batch(events, self.position, encode_elements(events))

    def _events(self, max_events: int | None, max_bytes: int) -> list[Event]:
        """Hand out events that wait, and move the position behind them; an invalidate is the last one."""
        size, count = 0, 0
        for event in self._waiting[:max_events]:
            size += len(event.raw)
            if size > max_bytes and count:
                break
            count += 1
            if event.operation_type == "invalidate":
                break
        events, self._waiting = self._waiting[:count], self._waiting[count:]
        if events:
            self.position = ResumeToken.parse(events[-1].token)
        elif self._merge.position > self.position:
            self.position = self._merge.position
        if events and events[-1].operation_type == "invalidate":
            self.close()
        return events

    def _checks(self) -> Iterator[Event | None]:
        """Skip to the position and look for it, on the merged stream: only one shard has its event."""
        client = self._spec.start_token
        events: Iterator[Event | None] = self._given()
        if client is None or client.kind is not TokenKind.EVENT or client.from_invalidate:
            return events
        self._search = EnsurePositionPresent(iter(SkipToPosition(events, client)), client)
        return iter(self._search)

    def _given(self) -> Iterator[Event | None]:
        while True:
            incoming, self._incoming = self._incoming, []
            yield from incoming

    # --- shards

    def _change_topology(self, event: Event) -> None:
        """Let a shard join at the time it was added, or leave at the time it was removed."""
        change = bson.decode(event.raw)
        if event.operation_type == "insert":
            shard = Shard.of(change["fullDocument"])
            if shard.name not in self._parts:
                self._cluster.add(shard)
                self._add(shard.name, event.cluster_time)
        elif event.operation_type == "delete":
            name = change["documentKey"]["_id"]
            if name in self._parts:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Let a shard leave that has given everything it had while it belonged to the cluster."""
        self._merge.remove(name)
        self._parts.pop(name).close()
        self._cluster.retire(name)

    def _add(self, name: str, since: int) -> None:
        self._parts[name] = part = self._subscribe(name, since)
        self._merge.add(name, part.promise)

    def _subscribe(self, name: str, since: int, after: ResumeToken | None = None) -> Subscription:
        spec = _SHARDS if name == CONFIG and self._cluster.follows_config else self._spec
        options: ChangeStreamOptions = replace(
            spec.options,
            resume_after=None,
            start_after=after,
            start_at_operation_time=None if after else to_timestamp(since),
        )
        start = None if after is None else after.decode()
        shard_spec = replace(spec, options=options, start_token=start)
        return self._cluster.hub(name).subscribe(shard_spec, latest=self._latest, now=self._now)


def _start_time(spec: StreamSpec, latest: int) -> int:
    """Give the time from which each shard is read; behind an invalidate, that of the next entry."""
    token = spec.start_token
    if token is not None:
        return to_int(token.cluster_time) + (1 if token.from_invalidate else 0)
    given = spec.options.start_at_operation_time
    return latest + 1 if given is None else to_int(given)
