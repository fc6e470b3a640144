"""All shards as one stream: a subscription on each of them, merged in the order that a sequencer decides."""

from __future__ import annotations

import time
from collections import deque
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

import bson

from tailrace.cluster.merge import Merge, ShardBacklog
from tailrace.cluster.sequencing import ByToken, Limits
from tailrace.cluster.topology import CONFIG, Shard
from tailrace.engine.event import NEW_SHARD, Event, Stage, run_stages
from tailrace.engine.options import ChangeStreamOptions, StreamSpec
from tailrace.engine.resumability import EnsurePositionPresent, SkipToPosition
from tailrace.engine.scope import Scope
from tailrace.engine.stream import MAX_BATCH_BYTES
from tailrace.engine.user_stages import are_quick
from tailrace.errors import ServerUnreachable
from tailrace.event import ChangeEvent
from tailrace.hub.batch import Batch
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token.resume_token import ResumeToken, TokenKind

if TYPE_CHECKING:
    from tailrace.cluster.hub import ClusterHub
    from tailrace.hub.event_log import EventLog

_SHARDS: Final = StreamSpec(Scope.of_collection("config", "shards"))
_POLLED_EVENTS: Final = 1_000
_NO_LIMITS: Final = Limits(None, 1 << 62)


class ShardPart(Protocol):
    """What one shard gives to a merged stream."""

    @property
    def position(self) -> ResumeToken:
        """Behind the last event that was given, or further."""

    @property
    def high_water_mark(self) -> ResumeToken:
        """Nothing below it will come any more."""

    @property
    def channel(self) -> EventLog | None:
        """The channel that it is read from, if there is one."""

    @property
    def is_catching_up(self) -> bool:
        """Whether an oplog is read by a scan of its own."""

    @property
    def has_data(self) -> bool:
        """Whether the next `poll` may find something."""

    def poll(self, max_events: int | None) -> Batch:
        """Give the events that are there now."""

    def close(self) -> None:
        """Stop."""


class MergedStream:
    """A change stream over all shards. Not for several threads at once."""

    def __init__(self, cluster: ClusterHub, spec: StreamSpec, latest: int, now: datetime, sequencer: ByToken) -> None:
        self._cluster = cluster
        self._spec = spec
        self._latest = latest
        self._now = now
        self._sequencer = sequencer
        self._since = _start_time(spec, latest)
        self._merge: Merge[Event] = Merge(sequencer.order)
        self._parts: dict[str, ShardPart] = {}
        self._ready: list[Event] = []
        self._topology_changes: deque[Event] = deque()
        """Changes of `config.shards` that the merge has not come to yet; the first one is in the merge."""
        self.is_closed = False
        self.has_buffered = False
        """Whether events of some shards wait for others."""
        self.polled_events = _POLLED_EVENTS
        """How many events of a shard are read at once."""
        self.position = spec.options.token or ResumeToken.high_water_mark(self._since.timestamp)
        self._search: EnsurePositionPresent | None = None
        self._checks = [] if sequencer.has_positions else self._make_checks()
        for name in cluster.shards:
            self._add(name, self._since)

    # --- what it shows: to other threads too, while one reads

    @property
    def namespace(self) -> str:
        """What it watches, as a server's cursor names it."""
        return self._spec.scope.namespace

    @property
    def is_served_by_shards(self) -> bool:
        """Whether the shards' own streams are merged."""
        return self._spec.served_by_shards

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that take part at this place of the stream."""
        return tuple(self._parts)

    @property
    def positions(self) -> dict[str, ResumeToken]:
        """The position of each shard: all that it has given is in the merge, or was handed out."""
        return {name: part.position for name, part in tuple(self._parts.items())}

    @property
    def backlogs(self) -> list[ShardBacklog]:
        """Where each shard stands in the merge, and for how long it has held the others back."""
        return self._merge.backlogs(time.monotonic())

    @property
    def channels(self) -> tuple[EventLog, ...]:
        """The channels it reads from."""
        return tuple(channel for part in tuple(self._parts.values()) if (channel := part.channel) is not None)

    @property
    def is_costly(self) -> bool:
        """Whether it has stages that may take their time."""
        return not are_quick(self._spec.stages)

    @property
    def is_catching_up(self) -> bool:
        """Whether some shard is still read by a scan of this stream's own."""
        return any(part.is_catching_up for part in tuple(self._parts.values()))

    @property
    def has_data(self) -> bool:
        """Whether the next `poll` may find something."""
        parts = tuple(self._parts.items())
        return bool(self._ready) or any(part.has_data for name, part in parts if self._may_read(name))

    @property
    def may_be_shared(self) -> bool:
        """Whether all was given that was read, the start was found, and what comes is the same for others."""
        is_found = self._search is None or self._search.is_found
        is_caught_up = not self._ready and not self.is_closed and is_found
        return self._sequencer.is_shareable and is_caught_up and not self.is_catching_up

    @property
    def reached(self) -> ResumeToken:
        """How far it has come: the position, or further when the shards have said that nothing is between."""
        return self.position if self._ready else max(self.position, self._merge.position)

    # --- reading

    def poll(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES, *, encode: bool = False) -> Batch:
        """Give the events that may leave now, without waiting for more; `encode`: for whoever sends them on."""
        if self.is_closed or max_events == 0:
            return Batch([], self.position)
        events, vector = self._read(Limits(max_events, max_bytes))
        if encode:
            return Batch.encoded(events, self.position, vector)
        return Batch(events, self.position, vector=vector)

    def take(self) -> list[Event]:
        """Give the events that may leave now, up to an invalidate, for whoever makes batches of them."""
        return [] if self.is_closed else self._read(_NO_LIMITS)[0]

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self.is_closed = True
        for part in self._parts.values():
            part.close()
        self._cluster.forget(self)

    def _read(self, limits: Limits) -> tuple[list[Event], bytes]:
        """Hand out what may leave and fits, and move the position behind it; with the shards' positions."""
        try:
            if self._cluster.error is not None:
                raise copy(self._cluster.error)
            if not self._ready:
                self._read_shards()
                self._take()
                self._ask_for_marks()
            cut = self._sequencer.cut(self._ready, limits, self.position, self._merge.position)
        except BaseException:
            self.close()
            raise
        events, self._ready = self._ready[: cut.events], self._ready[cut.events :]
        self.position = cut.position
        if cut.is_end:
            self.close()
        return events, cut.vector

    def _read_shards(self) -> None:
        for name, part in list(self._parts.items()):
            removed_by = self._cluster.removed_by(name)
            if removed_by is not None and part.high_water_mark.time > removed_by:
                self._remove(name)
                continue
            if not self._may_read(name):
                continue
            try:
                batch = part.poll(self.polled_events)
            except ServerUnreachable:
                # A shard that is away stalls the others: its subscription is opened again where it stood.
                self._parts[name] = self._subscribe(name, part.position.time, part.position)
                continue
            if name == CONFIG and batch.events and self._cluster.follows_config:
                self._topology_changes.extend(batch.events)
                self._feed_topology_change()
            else:
                given = self._sequencer.passed(name, batch.events, part.position)
                self._merge.feed(name, given, part.high_water_mark)

    def _may_read(self, name: str) -> bool:
        """Whether a shard may be read on: others may have to come after it first."""
        return self._merge.may_read(name) and not (name == CONFIG and self._topology_changes)

    def _ask_for_marks(self) -> None:
        """Have the shards that hold others back come further."""
        waiting = self._merge.newest_waiting
        self.has_buffered = waiting is not None
        if waiting is not None:
            # A shard's own stream stands at its newest entry, not behind it.
            self._cluster.advance_to(waiting.time + self.is_served_by_shards)

    def _feed_topology_change(self) -> None:
        """Let the next change in, and come no further than that: what lies behind it may need another shard."""
        if self._topology_changes:
            change = self._topology_changes[0]
            self._merge.feed(CONFIG, [change], ResumeToken.parse(change.token))

    def _take(self) -> None:
        """Let what may leave go through the checks of a resumed stream; topology changes are worked on here."""
        incoming: list[Event] = []
        while taken := self._merge.take():
            for event in taken:
                if self._topology_changes and event is self._topology_changes[0]:
                    self._change_topology(event)
                    self._topology_changes.popleft()
                    self._feed_topology_change()
                elif event.operation_type != NEW_SHARD:
                    incoming.append(event)
        checked, error = run_stages(self._checks, incoming)
        self._ready += checked
        if error is not None:
            raise error

    def _make_checks(self) -> list[Stage]:
        """Skip to the position and look for it, on the merged stream: only one shard has its event."""
        client = self._spec.start_token
        if client is None or client.kind is not TokenKind.EVENT or client.from_invalidate:
            return []
        self._search = EnsurePositionPresent(client)
        return [SkipToPosition(client), self._search]

    # --- shards

    def _change_topology(self, event: Event) -> None:
        """Let a shard join at the time it was added, or leave at the time it was removed."""
        change = ChangeEvent(event.raw)
        if event.operation_type == "insert":
            shard = Shard.of(bson.decode(change.full_document or b""))
            if shard.name not in self._parts:
                self._cluster.add(shard)
                self._add(shard.name, ClusterTime(event.cluster_time))
        elif event.operation_type == "delete":
            name = bson.decode(change.document_key or b"")["_id"]
            if name in self._parts:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Let a shard leave that has given everything it had while it belonged to the cluster."""
        self._merge.remove(name)
        self._parts.pop(name).close()
        self._sequencer.removed(name)
        self._cluster.retire(name)

    def _add(self, name: str, since: ClusterTime) -> None:
        self._parts[name] = part = self._subscribe(name, since)
        self._merge.add(name, part.high_water_mark)

    def _subscribe(self, name: str, since: ClusterTime, stood: ResumeToken | None = None) -> ShardPart:
        after = stood or self._sequencer.start_of(name)
        spec = _SHARDS if name == CONFIG and self._cluster.follows_config else self._spec
        options: ChangeStreamOptions = replace(
            spec.options,
            resume_after=None,
            start_after=after,
            start_at_operation_time=None if after else since.timestamp,
        )
        start = None if after is None else after.decode()
        shard_spec = replace(spec, options=options, start_token=start)
        part = self._cluster.open_part(name, shard_spec, self._latest, self._now)
        self._sequencer.opened(name, after or part.position)
        return part


def _start_time(spec: StreamSpec, latest: int) -> ClusterTime:
    """Give the time from which each shard is read; behind an invalidate, that of the next entry."""
    token = spec.start_token
    if token is not None:
        time = ClusterTime.from_timestamp(token.cluster_time)
        return time.next if token.from_invalidate else time
    given = spec.options.start_at_operation_time
    return ClusterTime(latest).next if given is None else ClusterTime.from_timestamp(given)
