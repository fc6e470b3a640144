"""The data files of a table that the driver writes, kept in the driver: which there are, and what is gone of each.

It holds for one snapshot. When somebody else has committed, also between a look and a commit of ours, it is made anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq
from pyroaring import BitMap

from tailrace.warehouse.batch.compaction import Compacted, Source, replace
from tailrace.warehouse.tables.driver_table import DataFile, DriverTable, Range


class TableFiles:
    """All data files of a table."""

    def __init__(self, table: DriverTable) -> None:
        self._table = table
        self._sources: dict[str, Source] = {}
        self.snapshot: int | None = None
        """The snapshot whose files these are; None when they are to be listed again, or there is none yet."""

    def refresh(self) -> None:
        """Take over what somebody else did to the table."""
        newest = self._table.refresh()
        if newest == self.snapshot:
            return
        self.snapshot = None
        self._forget()
        self._sources = {file.path: Source(file, self._table.vector(file)) for file in self._listed()}
        self.snapshot = newest

    def _listed(self) -> Iterable[DataFile]:
        return self._table.files()

    def _forget(self) -> None:
        """Leave what is known beside the list."""

    def sources(self) -> list[Source]:
        """Give all of them, for a compaction."""
        return list(self._sources.values())

    def append(self, files: Iterable[DataFile], vector: Any = None, gone: BitMap | None = None) -> None:
        """Remember new files; one that lost rows already has a deletion vector."""
        for file in files:
            self._sources[file.path] = Source(dataclasses.replace(file, vector=vector), gone or BitMap())

    def replace(self, done: Compacted, properties: Mapping[str, str]) -> bool:
        """Put a new file in the place of others, in one commit; tells whether these were still there."""
        self.refresh()
        if any(source.file.path not in self._sources for source in done.sources):
            return False
        sources = [Source(self._sources[one.file.path].file, one.gone) for one in done.sources]
        gone = {one.file.path: self._sources[one.file.path].gone for one in done.sources}
        now = dataclasses.replace(done, sources=sources)
        vector, lost, self.snapshot = replace(self._table, now, gone, properties, self.snapshot)
        for path in gone:
            del self._sources[path]
        if done.file is not None:
            self.append([done.file], vector, lost)
        return True


class RecentFiles(TableFiles):
    """Those of a history that may have events of today and yesterday: older ones are left to Spark.

    It also knows how far the tokens go, so that an ordinary batch, whose events are all newer, looks into no file, and
    does not even have Iceberg read what each file holds: that takes longer with every commit.
    """

    def __init__(self, table: DriverTable) -> None:
        super().__init__(table)
        self._newest: str | None = None
        """No row has a token behind this one; None when that is not known."""

    def _listed(self) -> Iterable[DataFile]:
        yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
        return self._table.files_since("cluster_time", yesterday)

    def _forget(self) -> None:
        self._newest = None

    def with_tokens(self, inside: Range) -> list[str]:
        """Give the files that may have events with tokens inside a range."""
        if self._newest is None:
            behind = [file.path for file in self._table.files_since("token", inside.least)]
            self._newest = self._newest_of(behind) if behind else inside.least
        if self._newest is not None and inside.least > self._newest:
            return []
        return self._table.files_between(inside)

    def _newest_of(self, paths: Iterable[str]) -> str | None:
        """Give the newest token of files, by their footers; None where one does not tell."""
        newest = [column_range(self._table.parquet(path).metadata, "token")[1] for path in paths]
        return None if None in newest else max(newest)

    def append_events(self, files: Iterable[DataFile], newest: str) -> None:
        """Remember new files, none of whose tokens is behind `newest`."""
        self.append(files)
        if self._newest is not None:
            self._newest = max(self._newest, newest)


def column_range(metadata: pq.FileMetaData, column: str) -> tuple[Any, Any]:
    """Give the least and the greatest value of a column in a file, as far as its footer tells."""
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    number = paths.index(column) if column in paths else None
    least, greatest = [], []
    for group in range(metadata.num_row_groups):
        found = None if number is None else metadata.row_group(group).column(number).statistics
        if found is None or not found.has_min_max:
            return None, None
        least.append(found.min)
        greatest.append(found.max)
    return min(least, default=None), max(greatest, default=None)
