"""Where oplog entries come from: the interface between a log and the engine that reads it.

A source is a live replica set (`tail.py`) or a recording. It only ever gives entries that a majority of
the set has, in the order of the log, each exactly once: what a source gave can never be rolled back.
Times are cluster times as one integer: seconds in the high 32 bits, increment in the low ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class OplogBatch(NamedTuple):
    """Some entries in a row, or none: then nothing happened for a while."""

    entries: Sequence[bytes]
    reached: int
    """The time of the newest entry given so far; the time asked for, while there was none."""
    operation_time: int = 0
    """How far the server was when it gave them; 0 when that is not known, as in a recording."""


class OplogReader(Protocol):
    """One pass over a log. A live log has no end: a batch without entries comes now and then."""

    def __iter__(self) -> Iterator[OplogBatch]: ...

    def __next__(self) -> OplogBatch: ...

    def close(self) -> None:
        """Stop, and free what the reader holds; a second call does nothing."""


class OplogSource(Protocol):
    """A log that can be read from any time it still has, any number of times."""

    def open(self, since: int) -> OplogReader:
        """Begin with the first entry at or after a time; `HistoryLost` when some are gone."""

    def entry_at(self, time: int) -> bytes:
        """Read the entry of exactly this time; `HistoryLost` when it is gone."""
