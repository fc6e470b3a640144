"""The data files of a table that the driver writes, kept in the driver: which there are, and what is gone of each.

It holds for one snapshot. When somebody else has committed, also between a look and a commit of ours, it is made anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyroaring import BitMap

from tailrace.warehouse.driver_compaction import Compacted, Source, replace
from tailrace.warehouse.driver_table import DataFile, DriverTable


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
        self._sources = {file.path: Source(file, self._table.vector(file)) for file in self._listed()}
        self.snapshot = newest

    def _listed(self) -> Iterable[DataFile]:
        return self._table.files()

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
    """Those that may have rows of today and yesterday, by a column of times: older ones are left to Spark."""

    def __init__(self, table: DriverTable, column: str) -> None:
        super().__init__(table)
        self._column = column

    def _listed(self) -> Iterable[DataFile]:
        yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
        return self._table.files_since(self._column, yesterday)
