"""Small files that the driver wrote become larger ones, in a thread beside the batches and within a budget.

Files are put together in tiers: sixteen of a size make one of the next, so a row is rewritten once per tier. Data files
never change, so the thread reads and writes undisturbed; between two batches its result takes the place of what it
read. Rows that batches took away meanwhile are known by file and position, and are gone in the new file as well.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tailrace.logs import get_logger
from tailrace.owned import OwnedThread
from tailrace.warehouse.tables.conflicts import Conflict
from tailrace.warehouse.tables.driver_table import DataFile, DriverTable

_FILES: Final = 16
"""So many files of a tier are put together."""
_MOST_ROWS: Final = 1_000_000
"""No file of more rows is made here; Spark's compaction makes larger ones."""
_LARGE: Final = 10_000
_GONE: Final = 0.3
"""A file of many rows that has lost this part of them is written anew; small ones wait until their tier is full."""
_log = get_logger("tailrace.warehouse")


@dataclass(frozen=True, slots=True)
class Source:
    """A data file that is to be replaced, and its rows that were gone when that began."""

    file: DataFile
    gone: BitMap

    @property
    def left(self) -> int:
        """The rows that are there."""
        return self.file.rows - len(self.gone)


def chosen(sources: Sequence[Source]) -> list[Source]:
    """Choose what to put together: the first full tier of a partition, or a large file that lost many of its rows."""
    tiers: dict[tuple[str | None, int], list[Source]] = defaultdict(list)
    for source in sources:
        tiers[source.file.partition, _tier(source.left)].append(source)
    for _, tier in sorted(tiers.items(), key=lambda item: item[0][1]):
        if len(tier) >= _FILES and sum(source.left for source in tier) <= _MOST_ROWS:
            return tier
    lost = [source for source in sources if source.file.rows >= _LARGE and len(source.gone) >= _GONE * source.file.rows]
    return [source for source in lost if source.left <= _MOST_ROWS][:1]


def _tier(rows: int) -> int:
    """Give the tier of a file; each is sixteen times the one before."""
    return (max(rows, 1).bit_length() - 1) // 4


@dataclass(frozen=True, slots=True)
class Compacted:
    """A new file, with where each of its rows was."""

    sources: Sequence[Source]
    file: DataFile | None
    """None when no row is left."""
    origin: Any
    """The number of the source of each row."""
    position: Any
    keys: tuple[pa.Array, Any] | None = None
    """Keys and versions, for a mirror."""

    def gone_since(self, gone: Mapping[str, BitMap]) -> BitMap:
        """Give the rows of the new file that batches took away meanwhile; `gone` has those of the sources now."""
        lost: list[int] = []
        for number, source in enumerate(self.sources):
            new = gone[source.file.path] - source.gone
            if new:
                places = np.flatnonzero(self.origin == number)
                lost += places[np.isin(self.position[places], np.array(new, np.int64))].tolist()
        return BitMap(lost)


def compact(table: DriverTable, sources: Sequence[Source], order: str) -> Compacted:
    """Write the rows of some files into one, sorted by a column."""
    parts, origins, positions = [], [], []
    schema = table.schema
    for number, source in enumerate(sources):
        left = np.setdiff1d(np.arange(source.file.rows), np.array(source.gone, np.int64), assume_unique=True)
        rows = table.rows_of(source.file.path, schema).take(pa.array(left))
        parts.append(rows)
        origins.append(np.full(len(left), number))
        positions.append(left)
    rows = pa.concat_tables(parts)
    by = pc.sort_indices(rows, [(order, "ascending")])
    rows, sorted_ = rows.take(by), by.to_numpy()
    origin, position = np.concatenate(origins)[sorted_], np.concatenate(positions)[sorted_]
    if not rows.num_rows:
        return Compacted(sources, None, origin, position)
    file = table.write_rows(rows, sources[0].file.partition)
    if "_version" not in schema.names:
        return Compacted(sources, file, origin, position)
    keys = rows["_key"].combine_chunks(), rows["_version"].to_numpy()
    return Compacted(sources, file, origin, position, keys)


class Compaction:
    """The compaction of one table; one runs at a time."""

    def __init__(self, table: DriverTable, order: str, share: float) -> None:
        """`share` is the part of one core that it may use on average; 0 is none."""
        self._table = table
        self._order = order
        self._share = share
        self._running: OwnedThread | None = None
        self._result: Compacted | None = None
        self._not_before = 0.0

    def take(self) -> Compacted | None:
        """Give what is ready, once."""
        if self._running is None or self._running.is_alive:
            return None
        self._running = None
        result, self._result = self._result, None
        return result

    def begin(self, sources: Sequence[Source]) -> None:
        """Put some of these files together in the background, if there is something to do and the budget has it."""
        if self._running is not None or not self._share or time.monotonic() < self._not_before:
            return
        wanted = chosen(sources)
        if wanted:
            self._running = OwnedThread(partial(self._run, wanted), name="tailrace-compaction")
            self._running.start()

    def wait(self) -> None:
        """Wait for what is running."""
        if self._running is not None:
            self._running.join()

    def _run(self, sources: Sequence[Source]) -> None:
        began, used = time.monotonic(), time.thread_time()
        try:
            self._result = compact(self._table, sources, self._order)
        except Exception as error:  # the tables are as they were; the next one tries again
            _log.warning("compaction_failed", cause=str(error))
        spent = max(time.thread_time() - used, 0.01)
        self._not_before = began + spent / self._share


def replace(
    table: DriverTable, done: Compacted, gone: Mapping[str, BitMap], properties: Mapping[str, str], since: int | None
) -> tuple[Any, BitMap, int | None]:
    """Put a new file in the place of its sources, in one commit; gives its deletion vector, if any, and what that has.

    `gone` has what is gone of the sources in the snapshot `since`. Raises Conflict, and changes nothing, when there is
    a newer one that touches them. The last is the new snapshot, as `DriverTable.rewrite` gives it.
    """
    lost = done.gone_since(gone)
    vectors = table.write_vectors({done.file.path: lost} if done.file is not None and lost else {})
    try:
        files = [source.file for source in done.sources]
        snapshot = table.rewrite(files, done.file, list(vectors.values()), properties, since)
    except Conflict as conflict:
        _log.info("compaction_overtaken", cause=str(conflict))
        raise
    return next(iter(vectors.values()), None), lost, snapshot
