"""The newest entries of an oplog, as many as fit into so many bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.oplog.source import OplogBatch
from tailrace.oplog.tail import time_of

_BYTES_PER_ENTRY: Final = 41
_BYTES_PER_BATCH: Final = 250
"""What Python adds to their bytes: where entries are small and come one by one, as much again."""


class _Segment(NamedTuple):
    """One batch as the tail read it."""

    entries: Sequence[bytes]
    size: int
    last: int
    """The time of its last entry."""


class Ring:
    """Holds every entry with `low` < time <= `reached`; the oldest ones leave when there are too many bytes."""

    def __init__(self, low: int, max_bytes: int) -> None:
        self.low = low
        self.reached = low
        self.size = 0
        self.max_bytes = max_bytes
        self._segments: deque[_Segment] = deque()

    def append(self, batch: OplogBatch) -> None:
        """Take what the tail read; a batch larger than the whole ring stays until the next one."""
        if batch.entries:
            size = sum(map(len, batch.entries)) + _BYTES_PER_ENTRY * len(batch.entries) + _BYTES_PER_BATCH
            self._segments.append(_Segment(batch.entries, size, batch.reached))
            self.size += size
        self.reached = max(self.reached, batch.reached)
        while self.size > self.max_bytes and len(self._segments) > 1:
            dropped = self._segments.popleft()
            self.size -= dropped.size
            self.low = dropped.last

    def after(self, time: int) -> OplogBatch | None:
        """Give the entries behind a time, some of them at least; None when some of them have left already."""
        if time < self.low:
            return None
        for segment in self._segments:
            if segment.last > time:
                skipped = bisect_right(segment.entries, time, key=time_of)
                return OplogBatch(segment.entries[skipped:], segment.last)
        return OplogBatch([], max(time, self.reached))
