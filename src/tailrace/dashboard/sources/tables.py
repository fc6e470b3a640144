"""The tables of the warehouse's catalog, read from their metadata."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.settings import WarehouseSettings
from tailrace.warehouse import TableState
from tailrace.warehouse.tables.catalogs import TableReader, open_tables


class TablesSource:
    """Reads the metadata of all tables; no data file is opened."""

    name = "iceberg"

    def __init__(self, settings: WarehouseSettings, spark_config: Mapping[str, str] | None = None) -> None:
        """`spark_config` says how a bucket is reached, where the tables are in one."""
        self._settings = settings
        self._spark_config = spark_config
        self._tables: TableReader | None = None

    def poll(self) -> list[TableState]:
        """Read what every table says of itself."""
        if self._tables is None:
            self._tables = open_tables(self._settings, self._spark_config)
        return self._tables.read()

    def close(self) -> None:
        """Give the connection to the catalog back."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None
