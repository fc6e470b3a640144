"""Where each document of a mirror is: the keys and versions of its data files, kept in the driver.

Data files never change, so what was read of one stays right; only which of its rows are gone changes, with every
snapshot. A batch looks at the files whose range of keys it touches, and the others are not even read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tailrace.warehouse.batch.compaction import Compacted, Source
from tailrace.warehouse.batch.table_files import TableFiles, column_range
from tailrace.warehouse.tables.driver_table import DataFile, DriverTable, NeedsSpark

MOST_ROWS: Final = 5_000_000
"""Larger mirrors are merged by Spark: each row takes about 30 bytes here, and each batch is compared with all."""


@dataclass(slots=True)
class _Keys:
    """The keys and versions of one data file."""

    least: bytes | None
    greatest: bytes | None
    keys: pa.Array | None = None
    versions: Any = None

    def overlaps(self, least: bytes, greatest: bytes) -> bool:
        """Whether a key inside a range may be in it."""
        if self.least is None or self.greatest is None:
            return True
        return self.least <= greatest and least <= self.greatest


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of one data file that are there for keys."""

    path: str
    numbers: Any
    """Which of the keys."""
    positions: Any
    versions: Any


@dataclass(slots=True)
class Change:
    """What a batch does to a mirror."""

    added: list[DataFile] = field(default_factory=list)
    keys: list[tuple[pa.Array, Any]] = field(default_factory=list)
    """Keys and versions of each of them."""
    gone: dict[str, BitMap] = field(default_factory=dict)
    """All rows that are gone then, by data file, of those that lose some."""


class KeyIndex(TableFiles):
    """The rows of one mirror."""

    def __init__(self, table: DriverTable) -> None:
        super().__init__(table)
        self._keys: dict[str, _Keys] = {}

    def refresh(self) -> None:
        """Take over what somebody else did to the mirror."""
        super().refresh()
        self._keys = {path: known for path, known in self._keys.items() if path in self._sources}

    def _listed(self) -> Iterable[DataFile]:
        files = list(super()._listed())
        if sum(file.rows for file in files) > MOST_ROWS:
            self._keys.clear()
            raise NeedsSpark(f"a mirror of more than {MOST_ROWS} rows", is_lasting=True)
        return files

    def find(self, keys: pa.Array, least: bytes, greatest: bytes) -> Iterator[Found]:
        """Give the rows that are there for keys, which are all inside a range."""
        for path, source in self._sources.items():
            known = self._keys_of(path)
            if not known.overlaps(least, greatest):
                continue
            if known.keys is None:
                rows = self._table.parquet(path).read(["_key", "_version"]).combine_chunks()
                known.keys, known.versions = _chunk(rows["_key"]), _chunk(rows["_version"]).to_numpy()
            numbers = pc.index_in(known.keys, value_set=keys)
            positions = np.flatnonzero(numbers.is_valid().to_numpy(zero_copy_only=False))
            if source.gone and len(positions):
                positions = positions[[position not in source.gone for position in positions.tolist()]]
            if len(positions):
                matched = numbers.take(pa.array(positions)).to_numpy()
                yield Found(path, matched, positions, known.versions[positions])

    def _keys_of(self, path: str) -> _Keys:
        if path not in self._keys:
            self._keys[path] = _Keys(*column_range(self._table.parquet(path).metadata, "_key"))
        return self._keys[path]

    def rows(self, path: str, positions: Any, columns: Sequence[str]) -> pa.Table:
        """Read rows of a data file, from the row groups that have them."""
        parquet = self._table.parquet(path)
        sizes = [parquet.metadata.row_group(number).num_rows for number in range(parquet.metadata.num_row_groups)]
        begins = np.concatenate(([0], np.cumsum(sizes)))
        groups = np.searchsorted(begins, positions, side="right") - 1
        chosen = sorted(set(groups.tolist()))
        places = np.concatenate([np.arange(begins[group], begins[group + 1]) for group in chosen])
        wanted = np.searchsorted(places, positions)
        return parquet.read_row_groups(chosen, columns=list(columns)).take(pa.array(wanted))

    def write_rows(self, rows: pa.Table) -> DataFile:
        """Write rows into a data file, which is in the mirror when a change with it is committed."""
        return self._table.write_rows(rows)

    def gone_with(self, path: str, positions: Any) -> BitMap:
        """Give the rows of a file that are gone when these are."""
        return self._sources[path].gone | BitMap(positions.tolist())

    def replace(self, done: Compacted, properties: Mapping[str, str]) -> bool:
        """Put a new file in the place of others, in one commit; tells whether these were still there."""
        is_done = super().replace(done, properties)
        if is_done and done.file is not None and done.keys is not None:
            self._remember(done.file.path, *done.keys)
        return is_done

    def commit(self, change: Change, properties: Mapping[str, str]) -> None:
        """Commit a change, and remember it."""
        vectors = self._table.write_vectors(change.gone)
        replaced = [old for path in change.gone if (old := self._sources[path].file.vector) is not None]
        self.snapshot = self._table.change(change.added, vectors, replaced, properties, self.snapshot)
        for path, gone in change.gone.items():
            self._sources[path] = Source(replace(self._sources[path].file, vector=vectors[path]), gone)
        self.append(change.added)
        for file, (keys, versions) in zip(change.added, change.keys, strict=True):
            self._remember(file.path, keys, versions)

    def _remember(self, path: str, keys: pa.Array, versions: Any) -> None:
        ends = pc.min_max(keys).as_py()
        self._keys[path] = _Keys(ends["min"], ends["max"], keys, versions)


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
