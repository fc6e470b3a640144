"""How a subscriber catches up on one shard: by a scan of its own until the shared ring has what comes next.

From there on it reads the ring, until a shared channel has every event behind what the scan has given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tailrace.engine.options import StreamSpec, read_token
from tailrace.engine.stream import EngineStream
from tailrace.hub.batch import Batch
from tailrace.hub.event_log import EventLog, Reading
from tailrace.hub.subscription import Standing, Subscription
from tailrace.oplog.source import OplogBatch, OplogReader
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token.resume_token import ResumeToken

if TYPE_CHECKING:
    from tailrace.hub.hub import Hub

_LITTLE: Final = 64 * 1024
"""Bytes that a scan may always hold."""


class CatchUpReader:
    """One pass over a shard's oplog that never waits at its end."""

    def __init__(self, hub: Hub, since: int) -> None:
        self._hub = hub
        self._since = since
        self._covered = since - 1
        self._scan: OplogReader | None = None
        self._closed = False
        self.is_untouched = True
        """Whether nothing has been read yet."""

    def __iter__(self) -> Iterator[OplogBatch]:
        return self

    def __next__(self) -> OplogBatch:
        if self._closed:
            raise StopIteration
        self.is_untouched = False
        batch = self._hub.recent(self._covered)
        if batch is None:
            batch = self._scan_on()
        else:
            self._end_scan()
        if batch.entries:
            self._covered = batch.reached
        return OplogBatch(batch.entries, max(batch.reached, self._since))

    @property
    def caught_up_at(self) -> int | None:
        """The time up to which everything was read; None while the ring begins later, or has not come so far."""
        return self._covered if self._hub.contains(self._covered) else None

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self._closed = True
        self._end_scan()

    def _scan_on(self) -> OplogBatch:
        if self._scan is None:
            self._scan = self._hub.oplog.open(self._covered + 1)
            self._hub.count_scan(1)
        return next(self._scan)

    def _end_scan(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None
            self._hub.count_scan(-1)


class CatchUpSource:
    """The oplog as one subscriber that catches up sees it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.reader: CatchUpReader

    def open(self, since: int) -> CatchUpReader:
        """Begin with the first entry at or after a time."""
        self.reader = CatchUpReader(self._hub, since)
        return self.reader

    def entry_at(self, time: int) -> bytes:
        """Read the entry of exactly this time."""
        return self._hub.oplog.entry_at(time)


class ShardScan:
    """The engine's stages over one shard's oplog, for one subscriber alone."""

    has_data = True
    channels: tuple[EventLog, ...] = ()

    def __init__(self, hub: Hub, spec: StreamSpec, latest: int, now: datetime) -> None:
        self._hub = hub
        self._latest = latest
        self._now = now
        self._open(spec)
        self._buffered = 0
        self._version = self._stream.token_version
        self._spec = replace(spec, token_version=self._version)

    def _open(self, spec: StreamSpec) -> None:
        self._is_parked = False
        source = CatchUpSource(self._hub)
        self._stream: EngineStream = self._hub.open_stream(spec, source, self._latest, self._now)
        self._reader = source.reader
        self.is_catching_up = True
        self.standing = Standing(self._stream.post_batch_resume_token, self._stream.post_batch_resume_token)

    @property
    def is_closed(self) -> bool:
        """Whether the stream has ended."""
        return self._stream.is_closed and not self._is_parked

    def poll(self, max_events: int | None, max_bytes: int) -> Batch:
        """Give the next events."""
        if self._is_parked:
            self.restart(self.standing.position)
        stream = self._stream
        events = stream.next_batch(max_events, max_bytes)
        position = stream.post_batch_resume_token
        caught_up_at = self._reader.caught_up_at if stream.is_caught_up else None
        self.standing = Standing(position, position) if caught_up_at is None else self._standing(position, caught_up_at)
        fits = self._count_buffered(stream.buffered_bytes)
        if stream.is_closed:  # maybe by another thread, meanwhile
            self._count_buffered(0)
        elif not fits:
            self._park()
        return Batch.encoded(events, position)

    def _count_buffered(self, size: int) -> bool:
        """Note what is held of the oplog from now on; False when it should not be."""
        change, self._buffered = size - self._buffered, size
        if not size and not change:
            return True
        return self._hub.count_scan_bytes(change) or size < _LITTLE

    def _park(self) -> None:
        """Hold nothing until somebody reads on: what was read of the oplog is read again then."""
        self._is_parked = True
        self._stream.abandon()
        self._count_buffered(0)

    def join(self, reader: Subscription[Any]) -> tuple[EventLog, int] | None:
        """Find the channel, when that has everything behind what the scan has given."""
        if self._is_parked:
            return None
        behind, is_untouched = self._reader.caught_up_at, self._reader.is_untouched
        if behind is None or not (self._stream.is_caught_up or is_untouched):
            return None
        start = self._spec.start_token
        if is_untouched and start is not None and not start.is_high_water_mark:
            return None
        joined = self._hub.join(reader, self._spec, self._latest, self._now, behind)
        if joined is not None:
            self.is_catching_up = False
            self._count_buffered(0)
            self._stream.close()
        return joined

    def restart(self, position: ResumeToken) -> None:
        """Scan again from a position."""
        options = replace(self._spec.options, start_after=position, resume_after=None, start_at_operation_time=None)
        start = read_token(options, self._hub.dialect)
        self._open(replace(self._spec, options=options, start_token=start))
        self._spec = self._stream.spec

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self._is_parked = False
        self._stream.close()
        self._count_buffered(0)

    def at_end(self, position: ResumeToken, reading: Reading) -> Standing:
        """Stand at the newest time that the tail has read."""
        reached = ClusterTime(reading.reached)
        if reached > position.time:
            position = ResumeToken.high_water_mark(reached.timestamp, self._version)
        return self._standing(position, reached)

    def after_invalidate(self, position: ResumeToken, reading: Reading) -> ResumeToken:
        """Stand at the invalidate or, where the server does, behind it."""
        return reading.end_position if self._hub.dialect.ends_at_invalidate else position

    def has_reached_opening(self, high_water_mark: ResumeToken) -> bool:
        """Whether all that had happened when it was opened has been read."""
        options = self._spec.options
        begins_now = options.token is None and options.start_at_operation_time is None
        return begins_now or high_water_mark.time > self._latest

    def _standing(self, position: ResumeToken, reached: int) -> Standing:
        """Everything up to a time was given, so that what comes next is later than that."""
        mark = ResumeToken.high_water_mark(ClusterTime(reached).next.timestamp, self._version)
        return Standing(position, max(position, mark))
