"""The planner of a streaming query: it reads the stream, says where the next batch ends, and divides it.

It lives in one process as long as the query. It reads ahead of Spark, so that the end of the next batch is known
without asking the server, and it gives small batches to the tasks as they are: those events are read once, not twice.
After a restart nothing is held here, and the tasks read the range of the checkpoint again, from the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from bson.timestamp import Timestamp

from tailrace.capture.source.reader import ReadBatch
from tailrace.capture.source.source import EventSource
from tailrace.driver import token_of
from tailrace.errors import SettingsError
from tailrace.spark.following import Following
from tailrace.spark.offset import Offset
from tailrace.spark.options import MIB, SourceOptions
from tailrace.spark.parts import (
    Inlined,
    Range,
    ShardRange,
    event_source,
    has_reached,
    inlined_parts,
    last_time,
    range_parts,
    up_to,
)

MOST_BYTES = 16 * MIB
"""Where a batch ends without limits of its own, except for the first, which takes all that was written before."""
_SECONDS_TO_WAIT = 0.02
"""How long a poll waits for new events; Spark polls again at once."""
_SECONDS_TO_BEGIN = 10.0
"""How long the first poll waits until the stream is open and it is known whether there are events."""


_UNASKED = Timestamp(0, 0)


class Planner:
    """Where the query is, what was read beyond that, and the batch that Spark works on."""

    def __init__(self, source: EventSource, options: SourceOptions) -> None:
        self._source = source
        self._options = options
        self._position: Offset | None = None
        self._reader: Following | None = None
        self._waiting: deque[ReadBatch] = deque()
        self._batch: _Batch | None = None
        self._is_first = True
        self._is_planned = False
        self._last_time: Timestamp | None = _UNASKED

    def latest(self) -> Offset:
        """Say where the next batch ends; the same position again means that there is nothing to do."""
        start = self._position or self._options.start or Offset(None)
        is_first, self._is_first = self._is_first, False
        if start.token is None or (is_first and not self._options.is_limited and self._source.gives_marks):
            # All that was written so far is one batch: so ends a query of AvailableNow, whose trigger knows one.
            now = newest(self._source)
            last = min(now, self._options.end or now, key=lambda offset: offset.key)
            self._moved(start, max(start, last, key=lambda offset: offset.key), None)
        elif self._options.end is not None and start.key >= self._options.end.key:
            self._position = start
        else:
            self._collect(start, _SECONDS_TO_BEGIN if is_first else _SECONDS_TO_WAIT)
        assert self._position is not None
        return self._position

    def parts(self, start: Offset, end: Offset) -> Sequence[Inlined | Range | ShardRange]:
        """Divide (start, end] between tasks."""
        if not self._is_planned:
            self._is_planned = True
            self._check_trigger(start, end)
        if self._position is None or self._position.key != end.key:
            self._jump(end)
        batch = self._batch
        if batch is not None and batch.events is not None and (batch.start, batch.end) == (start.key, end.key):
            return inlined_parts(batch.events, self._options) if batch.events else []
        return range_parts(start, end, self._options)

    def _check_trigger(self, start: Offset, end: Offset) -> None:
        """Refuse to go on with AvailableNow and limits: the query would read nothing any more, or go back.

        That trigger asks where everything ends before it gives the position of the checkpoint (by an empty range); all
        others give it first. Then a limited end is one behind the first beginning, which may long have been passed.
        """
        first = self._options.start
        is_late = not self._is_first and start.key == end.key
        if is_late and self._options.is_limited and first is not None and start.key != first.key:
            hint = "Leave out maxEventsPerBatch and maxBytesPerBatch, or use tailrace.spark.drain()."
            raise SettingsError("AvailableNow cannot go on from a checkpoint with limits", hint=hint)

    def close(self) -> None:
        """End the reading."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._waiting.clear()

    def _jump(self, end: Offset) -> None:
        """Go on after a restart: Spark gives the last position of its checkpoint as an empty range there."""
        self.close()
        self._position = end
        self._batch = None

    def _moved(self, start: Offset, end: Offset, events: list[bytes] | None) -> None:
        self._position = end
        self._batch = _Batch(start.key, end.key, events)

    def _collect(self, start: Offset, seconds: float) -> None:
        """Take what was read, up to the limits, and end the batch there."""
        if self._reader is None:
            self._reader = Following(self._source, start)
        batch = _Admission(self._options)
        end: bytes | None = None
        rest: ReadBatch | None = None
        is_last = False
        while not is_last:
            read = self._next_read(0 if batch.events else seconds)
            if read is None:
                break
            read, is_last = self._up_to_the_end(read)
            if read.caught_up:
                seconds = _SECONDS_TO_WAIT
            rest = batch.admit(read)
            end = token_of(batch.events[-1]) if rest is not None else read.token or end
            if rest is not None:
                self._waiting.appendleft(rest)
                is_last = False
                break
        if end is None:
            self._position = start
            return
        found = Offset.from_bson(end)
        if rest is not None and rest.token is not None:
            found = found.on_shards_of(Offset.from_bson(rest.token))
        if batch.events or is_last or self._is_due(start, found):
            self._moved(start, found, batch.inlined())
        else:
            self._position = start

    def _up_to_the_end(self, read: ReadBatch) -> tuple[ReadBatch, bool]:
        """Leave out what is behind the end of the stream, where it has one, and tell whether that is reached."""
        end = self._options.end
        if end is None:
            return read, False
        if self._last_time is _UNASKED:
            self._last_time = last_time(self._source, end)
        events, is_done = up_to(end.key, read.events, read.token)
        if not is_done and not (read.caught_up and has_reached(read.token, self._last_time)):
            return read, False
        return ReadBatch(events, end.to_bson(), sum(map(len, events)), read.caught_up, read.operation_time), True

    def _next_read(self, seconds: float) -> ReadBatch | None:
        if self._waiting:
            return self._waiting.popleft()
        assert self._reader is not None
        return self._reader.get(seconds)

    def _is_due(self, start: Offset, found: Offset) -> bool:
        """Whether an empty batch is worth its cost: when the position would become old without it."""
        assert start.token is not None
        assert found.token is not None
        behind = found.token.cluster_time.time - start.token.cluster_time.time
        return behind >= self._options.heartbeat_seconds


class _Batch:
    """A range, and its events if they are few enough to be held."""

    __slots__ = ("end", "events", "start")

    def __init__(self, start: bytes, end: bytes, events: list[bytes] | None) -> None:
        self.start = start
        self.end = end
        self.events = events


class _Admission:
    """Fills one batch up to its limits; one event always fits."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._most_bytes = options.max_bytes or MOST_BYTES
        self.events: list[bytes] = []
        self._size = 0

    def admit(self, read: ReadBatch) -> ReadBatch | None:
        """Take events; what is left over comes back for the next batch."""
        for number, event in enumerate(read.events):
            if self.events and self._is_full(len(event)):
                rest = read.events[number:]
                return ReadBatch(rest, read.token, sum(map(len, rest)), read.caught_up, read.operation_time)
            self.events.append(event)
            self._size += len(event)
        return None

    def inlined(self) -> list[bytes] | None:
        """Give the events if they may travel inside the tasks."""
        return self.events if self._size <= self._options.inline_bytes else None

    def _is_full(self, more: int) -> bool:
        limit = self._options.max_events
        if limit is not None and len(self.events) >= limit:
            return True
        return self._size + more > self._most_bytes


def newest(source: EventSource) -> Offset:
    """Give the server's newest position: a high-water mark behind everything that was written before the call."""
    token, _ = source.now()
    return Offset.from_bson(token)


def position_now(options: Mapping[str, str]) -> Offset:
    """Give the position behind all that a source of these options has now: the `until` of `drain`, and its `endAt`."""
    return newest(event_source(SourceOptions.parse(options)))


def available_now(options: Mapping[str, str], events_per_batch: int) -> tuple[Offset | None, dict[str, str]]:
    """Give where a query ends that does all that is there now, in limited batches, and the options of its source.

    It is for `supervise(until=...)`, as `drain` does it, and for `QueryCheckpoint.has_done`: where there is nothing to
    do, Spark makes no batch, and so reports none. None where a server gives no high-water marks, so that nobody knows
    when a position without an event is reached: Spark's own AvailableNow is left, which makes one batch of it all.
    """
    source = event_source(SourceOptions.parse(options))
    if not source.gives_marks:
        return None, dict(options)
    until = newest(source)
    assert until.token is not None
    return until, {**options, "endAt": until.token.hex, "maxEventsPerBatch": str(events_per_batch)}
