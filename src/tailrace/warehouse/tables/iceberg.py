"""Tables in Iceberg, in any catalog that Spark knows.

What Spark's SQL has no words for (the summary of a snapshot, planning files without reading them) is asked of
Iceberg's own classes in the driver's JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tailrace.settings import WarehouseSettings
from tailrace.spark.jvm import java_session
from tailrace.warehouse.columns.evolution import ANY_NAME
from tailrace.warehouse.tables.conflicts import conflicts
from tailrace.warehouse.tables.driver_table import SNAPSHOTS_KEPT, DriverTable, has_batch
from tailrace.warehouse.tables.format import Commit, Compacted, Lake, Name, absolute_folder, listed_properties, sql_text
from tailrace.warehouse.tables.names import TableKind, quoted
from tailrace.warehouse.tables.states import KIND_PROPERTY, NAMESPACE_PROPERTY, TableState, table_state

_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
_SNAPSHOT_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."
_ALWAYS: Final[Mapping[str, str]] = {
    # The metadata lists all snapshots and is written with every commit: old ones leave.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Tokens, keys and documents do not repeat. A writer that notices it after 2 MB, the default, hashes a whole batch.
    "write.parquet.dict-size-bytes": "65536",
}
_OF_KIND: Final[Mapping[TableKind, Mapping[str, str]]] = {
    TableKind.HISTORY: {
        # All events of a batch are of one day or two, so nothing is gained by shuffling them first.
        "write.distribution-mode": "none",
        "write.spark.fanout.enabled": "true",
        # Files are found again by the tokens in them, and tokens differ only behind their first characters.
        "write.metadata.metrics.column.token": "full",
        "write.metadata.metrics.column.raw": "none",
        "write.metadata.metrics.column.full_document": "none",
        "write.metadata.metrics.column.full_document_before": "none",
        "write.metadata.metrics.column.update_description": "none",
    },
    TableKind.MIRROR: {
        "write.merge.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.delete.mode": "merge-on-read",
        "write.merge.distribution-mode": "none",
        # Two jobs that insert the same documents at once must not both.
        "write.merge.isolation-level": "serializable",
        # Rows are found by their key: its range in each file tells which files a batch cannot touch.
        "write.metadata.metrics.column._key": "full",
        "write.metadata.metrics.column._bson": "none",
        "write.metadata.metrics.column._rest": "none",
    },
}
_TARGET_BYTES: Final = 128 * 1024 * 1024
SESSION: Final[Mapping[str, str]] = {
    # Iceberg 1.11 never gives back the memory for row ids that its vectorised reader takes: 64 KB for every 5,000 rows
    # of a table of version 3 that a MERGE reads (apache/iceberg#17241), until the process dies of it.
    "spark.sql.iceberg.vectorization.enabled": "false",
}


def session_properties(settings: WarehouseSettings) -> dict[str, str]:
    """Give the properties by which a session knows the catalog."""
    prefix = f"spark.sql.catalog.{settings.catalog}"
    catalog = {f"{prefix}.{key}" if key else prefix: value for key, value in catalog_properties(settings).items()}
    return {**SESSION, **catalog}


def catalog_properties(settings: WarehouseSettings) -> dict[str, str]:
    """Give the properties of the catalog; the empty name stands for the catalog's class."""
    config = dict(settings.catalog_config)
    chosen = {"": config.pop("class", _CLASS), "cache-enabled": "false"}
    if not {"type", "catalog-impl"} & config.keys():
        chosen |= {"type": "hadoop", "warehouse": absolute_folder(settings.folder)}
    if config.get("type") == "jdbc":
        # Without it the catalog knows no views, and fails where Spark looks whether a name that is no table is one.
        chosen["jdbc.schema-version"] = "V1"
    return {**chosen, **config}


class IcebergLake(Lake):
    """The tables of one catalog."""

    type_promotions: ClassVar = frozenset({("int", "long")})
    column_name: ClassVar = ANY_NAME

    def __init__(self, spark: SparkSession, settings: WarehouseSettings) -> None:
        super().__init__(spark)
        self.catalog = settings.catalog
        self._format_version = settings.format_version
        # Each part of such a name is a question to the JVM, which looks through all jars for it.
        self._spark_util = self._jvm.org.apache.iceberg.spark.Spark3Util
        self._expressions = self._jvm.org.apache.iceberg.expressions.Expressions

    def sql_name(self, table: Name) -> str:
        """Give the name for SQL."""
        return quoted(self.catalog, *table)

    def has_table(self, table: Name) -> bool:
        """Look whether there is such a table."""
        return self.spark.catalog.tableExists(self.sql_name(table))

    def create(
        self,
        table: Name,
        kind: TableKind,
        namespace: str,
        columns: str,
        *,
        day: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make a table unless it is there; days are its partitions."""
        if self.exists(table):
            return
        chosen = {
            **_ALWAYS,
            **_OF_KIND.get(kind, {}),
            "format-version": str(self._format_version),
            KIND_PROPERTY: kind.value,
            NAMESPACE_PROPERTY: namespace,
            **(properties or {}),
        }
        partitions = f"PARTITIONED BY (days({day}))" if day else ""
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(self.catalog, table[0])}")
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} ({columns}) USING iceberg {partitions}"
            f" TBLPROPERTIES ({listed_properties(chosen)})"
        )

    def purge(self, table: Name) -> None:
        """Remove a table with its files."""
        self.spark.sql(f"DROP TABLE IF EXISTS {self.sql_name(table)} PURGE")

    def properties(self, table: Name) -> dict[str, str]:
        """Give the properties of a table."""
        return dict(self._java(table).properties())

    def set_properties(self, table: Name, properties: Mapping[str, str]) -> None:
        """Set some of them, in one commit."""
        update = self._java(table).updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

    def replace(self, table: Name, rows: DataFrame, properties: Mapping[str, str]) -> None:
        """Put other rows and columns in the place of those of a table, in one commit; its other properties stay."""
        writer = rows.writeTo(self.sql_name(table)).using("iceberg")
        for key, value in {**self.properties(table), **properties}.items():
            writer = writer.tableProperty(key, value)
        writer.replace()

    def location(self, table: Name) -> str:
        """Give where the files of a table are."""
        return str(self._java(table).location())

    def version(self, table: Name) -> int | None:
        """Give the id of the newest snapshot."""
        snapshot = self._java(table).currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def rows(self, table: Name) -> int:
        """Give about how many rows there are: those that deletion vectors take away are counted."""
        snapshot = self._java(table).currentSnapshot()
        summary = {} if snapshot is None else dict(snapshot.summary())
        return int(summary.get("total-records", 0))

    def has_batch(self, table: Name, commit: Commit) -> bool:
        """Tell whether a batch, or a later one of the same query, is in the table already."""
        return has_batch(self._java(table), commit.query, commit.batch)

    def has_rows_between(self, table: Name, column: str, least: str, greatest: str) -> bool:
        """Tell whether a file may hold values in a range; only metadata is read."""
        expressions = self._expressions
        inside = expressions.greaterThanOrEqual(column, least), expressions.lessThanOrEqual(column, greatest)
        files = self._java(table).newScan().filter(inside[0]).filter(inside[1]).planFiles()
        try:
            return bool(files.iterator().hasNext())
        finally:
            files.close()

    def commit_as(self, commit: Commit, *, is_whole: bool = True) -> None:
        """Let the snapshots that this session makes from now on say which batch they are of."""
        for key in ("tailrace.batch", "tailrace.part-of-batch"):
            self.spark.conf.unset(f"{_SNAPSHOT_PROPERTY}{key}")
        for key, value in commit.properties(is_whole=is_whole).items():
            self.spark.conf.set(f"{_SNAPSHOT_PROPERTY}{key}", value)

    def append_unknown(self, table: Name, rows: DataFrame, same: str, since: int | None) -> None:
        """Add rows unless somebody else has added some after the snapshot `since`; `same` is not needed.

        Only what replaces rows is validated by Iceberg, so these replace none: the snapshot is called an append.
        """
        writer = rows.writeTo(self.sql_name(table)).option("isolation-level", "serializable")
        if since is not None:
            writer = writer.option("validate-from-snapshot-id", str(since))
        with conflicts():
            writer.overwrite(F.lit(False))

    def states(self) -> Iterator[TableState]:
        """Give what every table of ours says about itself, whatever the catalog is."""
        parser = self._jvm.org.apache.iceberg.TableMetadataParser
        for database in self._databases():
            for row in self.spark.sql(f"SHOW TABLES IN {quoted(self.catalog, *database[0].split('.'))}").collect():
                metadata = self._java((row.namespace, row.tableName)).operations().current()
                state = table_state(f"{row.namespace}.{row.tableName}", json.loads(parser.toJson(metadata)))
                if state is not None:
                    yield state

    def driver_table(self, table: Name) -> DriverTable | None:
        """Give a table for the driver to write small batches to; one before version 3 has no deletion vectors."""
        java = self._java(table)
        if int(java.operations().current().formatVersion()) < 3:
            return None
        return DriverTable(self._jvm, java)

    def use_names(self) -> None:
        """Let the session's SQL find tables as `database.table`."""
        self.spark.catalog.setCurrentCatalog(self.catalog)

    def compact(self, table: Name, kind: TableKind) -> Compacted:
        """Put the small files together; a mirror's rows are sorted by key, so that a batch touches few files."""
        options = (
            f"map('target-file-size-bytes', '{_TARGET_BYTES}', 'min-input-files', '4', 'delete-ratio-threshold', '0.2')"
        )
        order = ", strategy => 'sort', sort_order => '_key'" if kind is TableKind.MIRROR else ""
        row = self._call(f"rewrite_data_files(table => {self._argument(table)}, options => {options}{order})")
        if row.rewritten_data_files_count:
            self._call(f"rewrite_manifests(table => {self._argument(table)})")
        return Compacted(row.rewritten_data_files_count, row.added_data_files_count, row.rewritten_bytes_count)

    def expire(self, table: Name, keep_hours: float) -> int:
        """Remove snapshots older than this, and the files only they need; gives the number of files."""
        before = datetime.now(UTC) - timedelta(hours=keep_hours)
        row = self._call(
            f"expire_snapshots(table => {self._argument(table)}, older_than => TIMESTAMP '{before:%Y-%m-%d %H:%M:%S}',"
            f" retain_last => {SNAPSHOTS_KEPT})"
        )
        return sum(value for name, value in row.asDict().items() if name.startswith("deleted_"))

    def remove_orphans(self, table: Name, older_than_hours: float = 72) -> int:
        """Remove files that no snapshot knows: what killed jobs had written and not committed."""
        before = datetime.now(UTC) - timedelta(hours=older_than_hours)
        name, limit = self._argument(table), f"{before:%Y-%m-%d %H:%M:%S}"
        system = f"{quoted(self.catalog)}.system"
        call = f"CALL {system}.remove_orphan_files(table => {name}, older_than => TIMESTAMP '{limit}')"
        return len(self.spark.sql(call).collect())

    def _argument(self, table: Name) -> str:
        """Name a table for a procedure; without its catalog, the database would be looked for among the catalogs."""
        return sql_text(self.sql_name(table))

    def _call(self, call: str) -> Row:
        (row,) = self.spark.sql(f"CALL {quoted(self.catalog)}.system.{call}").collect()
        return row

    def _java(self, table: Name) -> Any:
        """Give Iceberg's own object, as fresh as this call."""
        return self._spark_util.loadIcebergTable(java_session(self.spark), self.sql_name(table))

    def _databases(self) -> list[Any]:
        """List the databases; a catalog in a folder that nobody has written to yet has none."""
        try:
            return self.spark.sql(f"SHOW NAMESPACES IN {quoted(self.catalog)}").collect()
        except Py4JJavaError as error:
            if not error.java_exception.getClass().getName().endswith(".NoSuchNamespaceException"):
                raise
            return []
