"""The catalog and its tables, as one Spark session sees them.

What Spark's SQL has no words for (the summary of a snapshot, planning files without reading them) is asked of
Iceberg's own classes in the driver's JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from tailrace.errors import SettingsError
from tailrace.settings import WarehouseSettings
from tailrace.spark.jvm import java_session, jvm_of
from tailrace.warehouse.names import TableKind, quoted
from tailrace.warehouse.tables import KIND_PROPERTY, NAMESPACE_PROPERTY, TableState, table_state

Name = tuple[str, str]
"""Database and table."""
_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
_SNAPSHOT_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."
_ALWAYS: Final[Mapping[str, str]] = {
    # The metadata lists all snapshots and is written with every commit: old ones leave.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Tokens, keys and documents do not repeat. A writer that notices it after 2 MB, the default, hashes a whole batch.
    "write.parquet.dict-size-bytes": "65536",
}
_SESSION: Final[Mapping[str, str]] = {
    # What is kept of a batch is read once or twice: counting how often each value comes costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A MERGE shuffles and sorts all rows that it compares, with the names of their files. A Bloom filter of the batch's
    # keys, which Spark would use for tables from 10 GB on only, leaves of these rows little more than those that match.
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1GB",
    # Iceberg 1.11 never gives back the memory for row ids that its vectorised reader takes: 64 KB for every 5,000 rows
    # of a table of version 3 that a MERGE reads (apache/iceberg#17241), until the process dies of it.
    "spark.sql.iceberg.vectorization.enabled": "false",
    # An aggregate with this many collections in a task is still done without sorting the events.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",
}
"""How the batches of a warehouse are worked on."""


def configure_catalog(spark: SparkSession, settings: WarehouseSettings) -> None:
    """Let a session know the catalog, and how to work; what it was given by its own configuration stays."""
    prefix = f"spark.sql.catalog.{settings.catalog}"
    catalog = {f"{prefix}.{key}" if key else prefix: value for key, value in catalog_properties(settings).items()}
    for name, value in {**_SESSION, **catalog}.items():
        if spark.conf.get(name, None) is None:
            spark.conf.set(name, value)


def catalog_properties(settings: WarehouseSettings) -> dict[str, str]:
    """Give the properties of the catalog; the empty name stands for the catalog's class."""
    config = dict(settings.catalog_config)
    chosen = {"": config.pop("class", _CLASS), "cache-enabled": "false"}
    if not {"type", "catalog-impl"} & config.keys():
        folder = settings.folder if "://" in settings.folder else str(Path(settings.folder).absolute())
        chosen |= {"type": "hadoop", "warehouse": folder}
    if config.get("type") == "jdbc":
        # Without it the catalog knows no views, and fails where Spark looks whether a name that is no table is one.
        chosen["jdbc.schema-version"] = "V1"
    return {**chosen, **config}


@dataclass(frozen=True, slots=True)
class Commit:
    """What a snapshot says about the batch that made it."""

    query: str
    """The query's own id, which lives in its checkpoint."""
    batch: int
    start: str = ""
    end: str = ""
    token: str = ""
    """The newest event of the batch, so that readers can tell how fresh a table is."""

    def properties(self) -> dict[str, str]:
        """Give the properties of the snapshot."""
        offsets = {"tailrace.offsets.start": self.start, "tailrace.offsets.end": self.end}
        return {
            "tailrace.query": self.query,
            "tailrace.batch": str(self.batch),
            "tailrace.token": self.token,
            **offsets,
        }


class Lake:
    """The tables of one catalog."""

    def __init__(self, spark: SparkSession, catalog: str, *, format_version: int = 3) -> None:
        self.spark = spark
        self.catalog = catalog
        self._format_version = format_version
        self._known: set[Name] = set()
        jvm = jvm_of(spark)
        if jvm is None:
            hint = "Give spark.master = local[*] or a cluster, or use spark-submit; Connect may read the tables."
            raise SettingsError("tables cannot be written through Spark Connect", hint=hint)
        # Each part of such a name is a question to the JVM, which looks through all jars for it.
        self._iceberg = jvm.org.apache.iceberg
        self._spark_util = self._iceberg.spark.Spark3Util
        self._expressions = self._iceberg.expressions.Expressions

    def sql_name(self, table: Name) -> str:
        """Give the name for SQL."""
        return quoted(self.catalog, *table)

    def table(self, table: Name) -> DataFrame:
        """Give the rows."""
        return self.spark.table(self.sql_name(table))

    def exists(self, table: Name) -> bool:
        """Tell whether there is such a table."""
        if table not in self._known and self.spark.catalog.tableExists(self.sql_name(table)):
            self._known.add(table)
        return table in self._known

    def create(
        self,
        table: Name,
        kind: TableKind,
        namespace: str,
        columns: str,
        *,
        partitioned_by: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make a table unless it is there."""
        if self.exists(table):
            return
        chosen = {
            **_ALWAYS,
            "format-version": str(self._format_version),
            KIND_PROPERTY: kind.value,
            NAMESPACE_PROPERTY: namespace,
            **(properties or {}),
        }
        listed = ", ".join(f"{sql_text(key)} = {sql_text(value)}" for key, value in chosen.items())
        partitions = f"PARTITIONED BY ({partitioned_by})" if partitioned_by else ""
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(self.catalog, table[0])}")
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} ({columns}) USING iceberg {partitions}"
            f" TBLPROPERTIES ({listed})"
        )

    def drop(self, table: Name) -> None:
        """Remove a table with its files."""
        self._known.discard(table)
        self.spark.sql(f"DROP TABLE IF EXISTS {self.sql_name(table)} PURGE")

    def properties(self, table: Name) -> dict[str, str]:
        """Give the properties of a table."""
        return dict(self.java(table).properties())

    def set_properties(self, table: Name, properties: Mapping[str, str]) -> None:
        """Set some of them, in one commit."""
        update = self.java(table).updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

    def java(self, table: Name) -> Any:
        """Give Iceberg's own object, as fresh as this call."""
        return self._spark_util.loadIcebergTable(java_session(self.spark), self.sql_name(table))

    def has_batch(self, table: Name, commit: Commit) -> bool:
        """Tell whether a batch is in the table already: its own snapshot, or one of a later batch, is in its past."""
        java = self.java(table)
        snapshot = java.currentSnapshot()
        while snapshot is not None:
            summary = dict(snapshot.summary())
            if summary.get("tailrace.query") == commit.query and "tailrace.batch" in summary:
                return int(summary["tailrace.batch"]) >= commit.batch
            parent = snapshot.parentId()
            snapshot = None if parent is None else java.snapshot(parent)
        return False

    def has_rows_between(self, table: Name, column: str, least: str, greatest: str) -> bool:
        """Tell whether a file may hold values in a range; only metadata is read."""
        expressions = self._expressions
        inside = expressions.greaterThanOrEqual(column, least), expressions.lessThanOrEqual(column, greatest)
        files = self.java(table).newScan().filter(inside[0]).filter(inside[1]).planFiles()
        try:
            return bool(files.iterator().hasNext())
        finally:
            files.close()

    def commit_as(self, commit: Commit, *, is_whole: bool = True) -> None:
        """Let the snapshots that this session makes from now on say which batch they are of.

        Snapshots of a part of a batch say so: a batch that was cut off in between counts as not done.
        """
        for key, value in commit.properties().items():
            name = f"{_SNAPSHOT_PROPERTY}{key}"
            if key == "tailrace.batch" and not is_whole:
                self.spark.conf.unset(name)
                name = f"{_SNAPSHOT_PROPERTY}tailrace.part-of-batch"
            self.spark.conf.set(name, value)
        if is_whole:
            self.spark.conf.unset(f"{_SNAPSHOT_PROPERTY}tailrace.part-of-batch")

    def states(self) -> Iterator[TableState]:
        """Give what every table of ours says about itself, whatever the catalog is."""
        parser = self._iceberg.TableMetadataParser
        for database in self._databases():
            for row in self.spark.sql(f"SHOW TABLES IN {quoted(self.catalog, *database[0].split('.'))}").collect():
                metadata = self.java((row.namespace, row.tableName)).operations().current()
                state = table_state(f"{row.namespace}.{row.tableName}", json.loads(parser.toJson(metadata)))
                if state is not None:
                    yield state

    def _databases(self) -> list[Any]:
        """List the databases; a catalog in a folder that nobody has written to yet has none."""
        try:
            return self.spark.sql(f"SHOW NAMESPACES IN {quoted(self.catalog)}").collect()
        except Py4JJavaError as error:
            if not error.java_exception.getClass().getName().endswith(".NoSuchNamespaceException"):
                raise
            return []


def sql_text(text: str) -> str:
    """Give a string as SQL has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
