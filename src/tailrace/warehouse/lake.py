"""The tables of a warehouse in the format that the settings name: the only place that knows which ones there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from tailrace.errors import SettingsError
from tailrace.settings import WarehouseSettings
from tailrace.spark.jvm import HadoopFiles
from tailrace.warehouse.tables import delta, iceberg
from tailrace.warehouse.tables.delta_log import LOG_FOLDER
from tailrace.warehouse.tables.format import Lake, absolute_folder

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
_SIGNS: Final = {"iceberg": "metadata", "delta": LOG_FOLDER}
"""The folder inside a table that tells its format."""


def configure_catalog(spark: SparkSession, settings: WarehouseSettings) -> None:
    """Let a session know the tables, and how to work; what it was given by its own configuration stays."""
    if settings.format == "delta":
        delta.check(spark)
    format_ = delta.SESSION if settings.format == "delta" else iceberg.session_properties(settings)
    for name, value in {**_SESSION, **format_}.items():
        if spark.conf.get(name, None) is None:
            spark.conf.set(name, value)


def open_lake(spark: SparkSession, settings: WarehouseSettings) -> Lake:
    """Give the tables, in a session that `configure_catalog` has told of them; a folder has those of one format."""
    if not settings.catalog_config:
        _refuse_other_format(spark, settings)
    if settings.format == "delta":
        return delta.DeltaLake(spark, settings)
    return iceberg.IcebergLake(spark, settings)


def _refuse_other_format(spark: SparkSession, settings: WarehouseSettings) -> None:
    """Refuse a folder with tables of another format before anything is written; the first table tells it."""
    files, folder = HadoopFiles.of(spark), absolute_folder(settings.folder)
    if files is None:
        return
    for database in files.names(folder):
        for table in files.names(f"{folder}/{database}"):
            inside = files.names(f"{folder}/{database}/{table}")
            found = next((format_ for format_, sign in _SIGNS.items() if sign in inside), settings.format)
            if found != settings.format:
                hint = f"Set warehouse.format = {found}, or choose another warehouse.folder."
                raise SettingsError(f"{folder} has tables in the format {found}, such as {database}.{table}", hint=hint)
            if _SIGNS[found] in inside:
                return
