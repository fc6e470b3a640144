"""The Iceberg tables of a warehouse folder, read from their metadata."""

from __future__ import annotations

from tailrace.warehouse import TableState, read_tables


class TablesSource:
    """Reads the metadata of all tables; no data file is opened."""

    name = "iceberg"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def look(self) -> list[TableState]:
        """Read what every table says of itself."""
        return read_tables(self._folder)

    def close(self) -> None:
        """Nothing stays open between looks."""
