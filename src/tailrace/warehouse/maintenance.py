"""Keep tables small to read and their metadata short: small files become large ones, old snapshots leave.

Without it every micro-batch would leave a few files and a line in the metadata for ever, and the cost of a batch would
grow with the days the job has run.
"""

from __future__ import annotations

import time

from tailrace.logs import get_logger
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.lake import Lake, Name
from tailrace.warehouse.mirror.mirrors import Mirrors
from tailrace.warehouse.summary import Summary
from tailrace.warehouse.tables.names import TableKind, history_table

_log = get_logger("tailrace.warehouse")


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
                self._lake.compact(table, kind)
                self._lake.expire(table, self._settings.keep_hours)
        _log.info("tables_maintained", tables=len(self._touched), seconds=round(time.monotonic() - began, 1))
        self._touched.clear()
        self._batches = 0
