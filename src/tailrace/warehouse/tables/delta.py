"""Tables in Delta Lake, in a folder: `folder/database/table`.

A table is known by its path, so that no metastore has to be asked and none is written to. That a batch is in a table is
said by Delta's own transaction identifiers: the query is the application, the number of the batch its version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession

from tailrace.errors import SettingsError
from tailrace.settings import WarehouseSettings
from tailrace.spark.connectors import DELTA
from tailrace.spark.jvm import HadoopFiles, java_session
from tailrace.spark.session import DELTA_CATALOG, DELTA_EXTENSIONS
from tailrace.warehouse.columns.contract import Contract
from tailrace.warehouse.tables.conflicts import conflicts
from tailrace.warehouse.tables.delta_log import LOG_FOLDER, Log, delta_state
from tailrace.warehouse.tables.format import (
    Commit,
    Compacted,
    Lake,
    Name,
    absolute_folder,
    listed_properties,
    sql_text,
)
from tailrace.warehouse.tables.names import TableKind, quoted
from tailrace.warehouse.tables.states import (
    CONTRACT_PROPERTY,
    KIND_PROPERTY,
    NAMESPACE_PROPERTY,
    SNAPSHOTS_SHOWN,
    TableState,
)

_APPLICATION: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_COMMIT: Final = "spark.databricks.delta.commitInfo.userMetadata"
_SHORT_RETENTION: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_CONFLICTS: Final = ("ConcurrentAppendException", "ConcurrentTransactionException")
_TARGET_BYTES: Final = str(128 * 1024 * 1024)
_ORPHAN_HOURS: Final = 72.0
_ALWAYS: Final[Mapping[str, str]] = {
    "delta.enableDeletionVectors": "true",
    # The times of commits are in the log: a copy of the folder has them too, and no two commits share one.
    "delta.enableInCommitTimestamps": "true",
}
_OF_KIND: Final[Mapping[TableKind, Mapping[str, str]]] = {
    # Files are found again by the tokens in them. Delta has no ranges of binary columns, so mirrors have none of keys.
    TableKind.HISTORY: {"delta.dataSkippingStatsColumns": "token,cluster_time,version,op"},
    TableKind.MIRROR: {"delta.dataSkippingStatsColumns": "_version,_token"},
}
SESSION: Final[Mapping[str, str]] = {
    # A log is read in this many tasks, 50 by default: that is for logs of millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Removing files lists a folder in this many tasks; the default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.databricks.delta.optimize.minFileSize": _TARGET_BYTES,
    "spark.databricks.delta.optimize.maxFileSize": _TARGET_BYTES,
    # Spark's own type has nanoseconds, which other readers take at their word: they know no year before 1678.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def check(spark: SparkSession) -> None:
    """Refuse a session that was started without Delta Lake, before anything is written."""
    extensions = spark.conf.get("spark.sql.extensions", None) or ""
    if DELTA_EXTENSIONS in extensions and spark.conf.get("spark.sql.catalog.spark_catalog", None) == DELTA_CATALOG:
        return
    raise SettingsError(
        'this Spark session was started without Delta Lake, and warehouse.format is "delta"',
        hint=f"Submit with --packages {DELTA[0]}, spark.sql.extensions={DELTA_EXTENSIONS} and"
        f" spark.sql.catalog.spark_catalog={DELTA_CATALOG}.",
    )


_STAGED: Final = "_staged_commits"
"""The folder that Delta makes in a log before its first commit."""


class DeltaLake(Lake):
    """The tables of one folder."""

    # Delta can widen in place, too, but then few of its readers can read the table.
    type_promotions: ClassVar = frozenset()
    # Spaces would need its column mapping, which is one more thing that a reader has to know.
    column_name: ClassVar = re.compile(r"[^\W\d][\w\-]{0,127}")

    def __init__(self, spark: SparkSession, settings: WarehouseSettings) -> None:
        super().__init__(spark)
        self._folder = absolute_folder(settings.folder)
        self._keep_hours = settings.keep_hours
        files = HadoopFiles.of(spark)
        if files is None:
            raise SettingsError("tables in Delta Lake need a Spark session with a JVM of its own")
        self._files = files
        self._logs: Any = self._jvm.org.apache.spark.sql.delta.DeltaLog

    def sql_name(self, table: Name) -> str:
        """Give the name for SQL, which is the path."""
        return quoted("delta", self.location(table))

    def location(self, table: Name) -> str:
        """Give where the files of a table are."""
        return "/".join((self._folder, *table))

    def has_table(self, table: Name) -> bool:
        """Look whether there is such a table."""
        inside = self._files.names(f"{self.location(table)}/{LOG_FOLDER}")
        return any(name[:1].isdigit() for name in inside)

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
        """Make a table unless it is there; the ranges of its columns keep days apart, without partitions."""
        if self.exists(table):
            return
        self._remove_log_without_commit(table)
        chosen = {
            **_ALWAYS,
            **_OF_KIND.get(kind, {}),
            **_retention(self._keep_hours),
            **_features_of((properties or {}).get(CONTRACT_PROPERTY)),
            KIND_PROPERTY: kind.value,
            NAMESPACE_PROPERTY: namespace,
            **(properties or {}),
        }
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} ({columns}) USING delta"
            f" TBLPROPERTIES ({listed_properties(chosen)})"
        )

    def _remove_log_without_commit(self, table: Name) -> None:
        """Make room where a crash in CREATE TABLE left a log without a commit, which Delta takes for a table.

        Files whose names begin with a dot are commits that were being written. A folder with anything else is left.
        """
        log = f"{self.location(table)}/{LOG_FOLDER}"
        for name in self._files.names(log):
            if name.startswith("."):
                self._files.remove(f"{log}/{name}")
        self._files.remove_empty(f"{log}/{_STAGED}")
        if self._files.remove_empty(log):
            self._logs.invalidateCache(
                java_session(self.spark), self._jvm.org.apache.hadoop.fs.Path(self.location(table))
            )

    def purge(self, table: Name) -> None:
        """Remove a table with its files; what the JVM keeps of its log goes too."""
        location = self.location(table)
        self._files.remove(location)
        self._logs.invalidateCache(java_session(self.spark), self._jvm.org.apache.hadoop.fs.Path(location))

    def properties(self, table: Name) -> dict[str, str]:
        """Give the properties of a table."""
        return dict(_metadata(self._snapshot(table)).get("configuration") or {})

    def set_properties(self, table: Name, properties: Mapping[str, str]) -> None:
        """Set some of them, in one commit."""
        self.spark.sql(f"ALTER TABLE {self.sql_name(table)} SET TBLPROPERTIES ({listed_properties(properties)})")

    def replace(self, table: Name, rows: DataFrame, properties: Mapping[str, str]) -> None:
        """Put other rows and columns in the place of those of a table, in one commit; its other properties stay."""
        writer = rows.writeTo(self.sql_name(table)).using("delta")
        for key, value in {**self.properties(table), **properties}.items():
            writer = writer.tableProperty(key, value)
        writer.replace()

    def version(self, table: Name) -> int | None:
        """Give the version of the table."""
        return int(self._snapshot(table).version())

    def rows(self, table: Name) -> int:
        """Count the rows, which Delta does by the log alone."""
        return self.table(table).count()

    def commit_as(self, commit: Commit, *, is_whole: bool = True) -> None:
        """Let the commits that this session makes from now on say which batch they are of.

        Delta skips what a table has of the same application and version already, so parts of a batch have none.
        """
        self.spark.conf.set(_COMMIT, json.dumps(commit.properties(is_whole=is_whole)))
        if is_whole:
            self.spark.conf.set(_APPLICATION, _application(commit))
            self.spark.conf.set(_VERSION, str(commit.batch))
        else:
            self.spark.conf.unset(_APPLICATION)
            self.spark.conf.unset(_VERSION)

    def has_batch(self, table: Name, commit: Commit) -> bool:
        """Tell whether a batch, or a later one of the same query, is in the table already."""
        known = self._snapshot(table).transactions().get(_application(commit))
        return bool(known.isDefined()) and int(known.get()) >= commit.batch

    def has_rows_between(self, table: Name, column: str, least: str, greatest: str) -> bool:
        """Tell whether a file may hold values in a range, by the ranges in the log."""
        inside = self.table(table).where(f"{column} >= '{least}' AND {column} <= '{greatest}'")
        return bool(inside.inputFiles())

    def append_unknown(self, table: Name, rows: DataFrame, same: str, since: int | None) -> None:
        """Add rows that the table has not; Delta validates what a MERGE has read, whatever there was at `since`."""
        into = f"MERGE INTO {self.sql_name(table)} t"
        with self.view(rows) as view, conflicts(_CONFLICTS):
            self.spark.sql(f"{into} USING {view} s ON {same} WHEN NOT MATCHED THEN INSERT *")

    def states(self) -> Iterator[TableState]:
        """Give what every table of ours says about itself."""
        for table in self._tables():
            state = delta_state(".".join(table), self._log(table))
            if state is not None:
                yield state

    def use_names(self) -> None:
        """Name the tables in the session's own catalog, which forgets them with the session."""
        for table in self._tables():
            database = f"{quoted(table[0])} LOCATION {sql_text(f'{self._folder}/{table[0]}')}"
            self.spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
            location = sql_text(self.location(table))
            self.spark.sql(f"CREATE TABLE IF NOT EXISTS {quoted(*table)} USING delta LOCATION {location}")

    def _tables(self) -> Iterator[Name]:
        for database in self._files.names(self._folder):
            for name in self._files.names(f"{self._folder}/{database}"):
                if self.has_table((database, name)):
                    yield database, name

    def compact(self, table: Name, kind: TableKind) -> Compacted:
        """Put small files together, and leave deleted rows out of those that have many."""
        (row,) = self.spark.sql(f"OPTIMIZE {self.sql_name(table)}").collect()
        done = row.metrics
        return Compacted(done.numFilesRemoved, done.numFilesAdded, done.filesRemoved.totalSize or 0)

    def expire(self, table: Name, keep_hours: float) -> int:
        """Remove the files that only versions older than this need; the log itself is cut by Delta.

        Only files that the log names are removed (`LITE`), never those that a job is writing just now.
        """
        known, wanted = self.properties(table), _retention(keep_hours)
        if any(known.get(key) != value for key, value in wanted.items()):
            self.set_properties(table, wanted)
        return self._vacuum(table, "LITE", keep_hours)

    def remove_orphans(self, table: Name, older_than_hours: float = _ORPHAN_HOURS) -> int:
        """Remove files that the log does not name: what killed jobs had written and not committed."""
        return self._vacuum(table, "FULL", max(older_than_hours, self._keep_hours))

    def _vacuum(self, table: Name, mode: str, hours: float) -> int:
        before = len(self._files.names(self.location(table)))
        self.spark.conf.set(_SHORT_RETENTION, "false")
        try:
            self.spark.sql(f"VACUUM {self.sql_name(table)} {mode} RETAIN {hours} HOURS")
        finally:
            self.spark.conf.unset(_SHORT_RETENTION)
        return max(0, before - len(self._files.names(self.location(table))))

    def _log(self, table: Name) -> Log:
        snapshot = self._snapshot(table)
        history = self.spark.sql(f"DESCRIBE HISTORY {self.sql_name(table)} LIMIT {SNAPSHOTS_SHOWN}").collect()
        return Log(
            properties=self.properties(table),
            schema=json.loads(_metadata(snapshot)["schemaString"]),
            rows=self.rows(table),
            files=int(snapshot.numOfFiles()),
            bytes=int(snapshot.sizeInBytes()),
            history=[
                {
                    "version": row.version,
                    "timestamp": round(row.timestamp.timestamp() * 1000),
                    "operation": row.operation,
                    "operationMetrics": row.operationMetrics or {},
                    "userMetadata": row.userMetadata,
                }
                for row in history
            ],
        )

    def _snapshot(self, table: Name) -> Any:
        """Give Delta's own object, as fresh as this call."""
        nothing = self._jvm.scala.Option.empty()
        return self._logs.forTable(java_session(self.spark), self.location(table)).update(False, nothing, nothing)


def _metadata(snapshot: Any) -> dict[str, Any]:
    """Give what a table is, as its log has it."""
    metadata: dict[str, Any] = json.loads(snapshot.metadata().json())["metaData"]
    return metadata


def _application(commit: Commit) -> str:
    return f"tailrace {commit.query}"


def _features_of(contract: str | None) -> dict[str, str]:
    """Give what a table has to support from the beginning; fewer readers know a table with variants."""
    return {"delta.feature.variantType": "supported"} if contract == Contract.VARIANT else {}


def _retention(keep_hours: float) -> dict[str, str]:
    """Say how long versions can be read: their files, and the log that names them."""
    interval = f"interval {max(1, round(keep_hours * 3600))} seconds"
    return {"delta.deletedFileRetentionDuration": interval, "delta.logRetentionDuration": interval}
