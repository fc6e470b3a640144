"""The tables of a warehouse in the format that the settings name: the only place that knows which ones there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from tailrace.settings import WarehouseSettings
from tailrace.warehouse import delta, iceberg
from tailrace.warehouse.table_format import Commit, Compacted, Lake, Name, sql_text

__all__ = ["Commit", "Compacted", "Lake", "Name", "configure_catalog", "open_lake", "sql_text"]

_SESSION: Final[Mapping[str, str]] = {
    # What is kept of a batch is read once or twice: counting how often each value comes costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A MERGE shuffles and sorts all rows that it compares, with the names of their files. A Bloom filter of the batch's
    # keys, which Spark would use for tables from 10 GB on only, leaves of these rows little more than those that match.
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1GB",
    # An aggregate with this many collections in a task is still done without sorting the events.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",
}
"""How the batches of a warehouse are worked on."""


def configure_catalog(spark: SparkSession, settings: WarehouseSettings) -> None:
    """Let a session know the tables, and how to work; what it was given by its own configuration stays."""
    if settings.format == "delta":
        delta.check(spark)
    format_ = delta.SESSION if settings.format == "delta" else iceberg.session_properties(settings)
    for name, value in {**_SESSION, **format_}.items():
        if spark.conf.get(name, None) is None:
            spark.conf.set(name, value)


def open_lake(spark: SparkSession, settings: WarehouseSettings) -> Lake:
    """Give the tables, in a session that `configure_catalog` has told of them."""
    if settings.format == "delta":
        return delta.DeltaLake(spark, settings)
    return iceberg.IcebergLake(spark, settings)
