"""Keep tables small to read and their metadata short: small files become large ones, old snapshots leave.

Without it every micro-batch would leave a few files and a line in the metadata for ever, and the cost of a batch would
grow with the days the job has run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Row

from tailrace.logs import get_logger
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.lake import Lake, Name, sql_text
from tailrace.warehouse.mirrors import Mirrors
from tailrace.warehouse.names import TableKind, history_table, quoted
from tailrace.warehouse.summary import Summary

_TARGET_BYTES: Final = 128 * 1024 * 1024
_SNAPSHOTS_KEPT: Final = 10
"""The newest snapshots always stay: among them is the one that says which batch was the last."""
_log = get_logger("tailrace.warehouse")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    files_before: int
    files_after: int
    bytes: int


def compact(lake: Lake, table: Name, kind: TableKind) -> Compacted:
    """Put the small files of a table together; a mirror's rows are sorted by key, so that a batch touches few files."""
    options = (
        f"map('target-file-size-bytes', '{_TARGET_BYTES}', 'min-input-files', '4', 'delete-ratio-threshold', '0.2')"
    )
    order = ", strategy => 'sort', sort_order => '_key'" if kind is TableKind.MIRROR else ""
    row = _call(lake, f"rewrite_data_files(table => {_argument(table)}, options => {options}{order})")
    if row.rewritten_data_files_count:
        _call(lake, f"rewrite_manifests(table => {_argument(table)})")
    return Compacted(row.rewritten_data_files_count, row.added_data_files_count, row.rewritten_bytes_count)


def expire(lake: Lake, table: Name, keep_hours: float) -> int:
    """Remove snapshots older than this, and the files only they need; gives the number of files."""
    before = datetime.now(UTC) - timedelta(hours=keep_hours)
    row = _call(
        lake,
        f"expire_snapshots(table => {_argument(table)}, older_than => TIMESTAMP '{before:%Y-%m-%d %H:%M:%S}',"
        f" retain_last => {_SNAPSHOTS_KEPT})",
    )
    return sum(value for name, value in row.asDict().items() if name.startswith("deleted_"))


def remove_orphans(lake: Lake, table: Name, older_than_hours: float = 72) -> int:
    """Remove files that no snapshot knows: what killed jobs had written and not committed."""
    before = datetime.now(UTC) - timedelta(hours=older_than_hours)
    name, limit = _argument(table), f"{before:%Y-%m-%d %H:%M:%S}"
    found = lake.spark.sql(
        f"CALL {quoted(lake.catalog)}.system.remove_orphan_files(table => {name}, older_than => TIMESTAMP '{limit}')"
    )
    return len(found.collect())


class Maintenance:
    """Does both every now and then for the tables that a job writes."""

    def __init__(self, lake: Lake, mirrors: Mirrors, settings: WarehouseSettings) -> None:
        self._lake = lake
        self._mirrors = mirrors
        self._settings = settings
        self._batches = 0
        self._touched: set[tuple[Name, TableKind]] = set()

    def after_batch(self, summary: Summary) -> None:
        """Count a batch, and do the work when enough have passed."""
        for part in summary.parts:
            self._touched.add((history_table(part.namespace), TableKind.HISTORY))
            if part.changes:
                self._touched.add((self._mirrors.table(part.namespace), TableKind.MIRROR))
        self._batches += 1
        if self._settings.maintain_batches and self._batches >= self._settings.maintain_batches:
            self._run()

    def _run(self) -> None:
        began = time.monotonic()
        for table, kind in sorted(self._touched):
            if self._lake.exists(table):
                compact(self._lake, table, kind)
                expire(self._lake, table, self._settings.keep_hours)
        _log.info("tables_maintained", tables=len(self._touched), seconds=round(time.monotonic() - began, 1))
        self._touched.clear()
        self._batches = 0


def _call(lake: Lake, call: str) -> Row:
    (row,) = lake.spark.sql(f"CALL {quoted(lake.catalog)}.system.{call}").collect()
    return row


def _argument(table: Name) -> str:
    return sql_text(quoted(*table))
