"""The planner of a streaming query: it reads the stream, says where the next batch ends, and divides it.

It lives in one process as long as the query. It reads ahead of Spark, so that the end of the next batch is known
without asking the server, and it gives small batches to the tasks as they are: those events are read once, not twice.
After a restart nothing is held here, and the tasks read the range of the checkpoint again, from the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tailrace.capture.source.reader import Portion
from tailrace.capture.source.source import EventSource
from tailrace.driver import token_of
from tailrace.errors import SettingsError
from tailrace.spark.following import Following
from tailrace.spark.offset import Offset
from tailrace.spark.options import MIB, SourceOptions
from tailrace.spark.parts import Carried, Range, ShardRange, carried_parts, range_parts

MOST_BYTES = 16 * MIB
"""Where a batch ends without limits of its own, except for the first, which takes all that was written before."""
_SECONDS_TO_WAIT = 0.02
"""How long a look for new events waits for one; Spark looks again at once."""
_SECONDS_TO_BEGIN = 10.0
"""How long the first look waits until the stream is open and has told whether there are events."""


class Planner:
    """Where the query is, what was read beyond that, and the batch that Spark works on."""

    def __init__(self, source: EventSource, options: SourceOptions) -> None:
        self._source = source
        self._options = options
        self._position: Offset | None = None
        self._reader: Following | None = None
        self._waiting: deque[Portion] = deque()
        self._batch: _Batch | None = None
        self._is_first = True
        self._is_planned = False

    def latest(self) -> Offset:
        """Say where the next batch ends; the same position again means that there is nothing to do."""
        start = self._position or self._options.start or Offset(None)
        is_first, self._is_first = self._is_first, False
        if start.token is None or (is_first and not self._options.is_limited):
            # All that was written so far is one batch: so ends a query of AvailableNow, whose trigger knows one.
            now = newest(self._source)
            self._moved(start, max(start, now, key=lambda offset: offset.key), None)
        else:
            self._collect(start, _SECONDS_TO_BEGIN if is_first else _SECONDS_TO_WAIT)
        assert self._position is not None
        return self._position

    def parts(self, start: Offset, end: Offset) -> Sequence[Carried | Range | ShardRange]:
        """Divide (start, end] between tasks."""
        if not self._is_planned:
            self._is_planned = True
            self._check_trigger(start, end)
        if self._position is None or self._position.key != end.key:
            self._jump(end)
        batch = self._batch
        if batch is not None and batch.events is not None and (batch.start, batch.end) == (start.key, end.key):
            return carried_parts(batch.events, self._options) if batch.events else []
        return range_parts(start, end, self._options)

    def _check_trigger(self, start: Offset, end: Offset) -> None:
        """Refuse to go on with AvailableNow and limits: the query would read nothing any more, or go back.

        That trigger asks where everything ends before it tells the position of the checkpoint (by an empty range); all
        others tell it first. Then a limited end is one behind the first beginning, which may long have been passed.
        """
        first = self._options.start
        is_told_late = not self._is_first and start.key == end.key
        if is_told_late and self._options.is_limited and first is not None and start.key != first.key:
            hint = "Leave out maxEventsPerBatch and maxBytesPerBatch, or use another trigger."
            raise SettingsError("AvailableNow cannot go on from a checkpoint with limits", hint=hint)

    def close(self) -> None:
        """End the reading."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._waiting.clear()

    def _jump(self, end: Offset) -> None:
        """Go on after a restart: Spark tells the last position of its checkpoint by an empty range there."""
        self.close()
        self._position = end
        self._batch = None

    def _moved(self, start: Offset, end: Offset, events: list[bytes] | None) -> None:
        self._position = end
        self._batch = _Batch(start.key, end.key, events)

    def _collect(self, start: Offset, patience: float) -> None:
        """Take what was read, up to the limits, and end the batch there."""
        if self._reader is None:
            self._reader = Following(self._source, start)
        batch = _Admission(self._options)
        end: bytes | None = None
        rest: Portion | None = None
        while True:
            portion = self._next_portion(0 if batch.events else patience)
            if portion is None:
                break
            if portion.caught_up:
                patience = _SECONDS_TO_WAIT
            rest = batch.admit(portion)
            end = token_of(batch.events[-1]) if rest is not None else portion.token or end
            if rest is not None:
                self._waiting.appendleft(rest)
                break
        if end is None:
            self._position = start
            return
        found = Offset.from_bson(end)
        if rest is not None and rest.token is not None:
            found = found.on_shards_of(Offset.from_bson(rest.token))
        if batch.events or self._is_due(start, found):
            self._moved(start, found, batch.carried())
        else:
            self._position = start

    def _next_portion(self, patience: float) -> Portion | None:
        if self._waiting:
            return self._waiting.popleft()
        assert self._reader is not None
        return self._reader.get(patience)

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

    def admit(self, portion: Portion) -> Portion | None:
        """Take events; what is left over comes back for the next batch."""
        for number, event in enumerate(portion.events):
            if self.events and self._is_full(len(event)):
                rest = portion.events[number:]
                return Portion(rest, portion.token, sum(map(len, rest)), portion.caught_up, portion.operation_time)
            self.events.append(event)
            self._size += len(event)
        return None

    def carried(self) -> list[bytes] | None:
        """Give the events if they may travel inside the tasks."""
        return self.events if self._size <= self._options.carry_bytes else None

    def _is_full(self, more: int) -> bool:
        limit = self._options.max_events
        if limit is not None and len(self.events) >= limit:
            return True
        return self._size + more > self._most_bytes


def newest(source: EventSource) -> Offset:
    """Give the server's newest position: a high-water mark behind everything that was written before the call."""
    token, _ = source.now()
    return Offset.from_bson(token)
