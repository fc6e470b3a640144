"""The warehouse job: change events in, a history and a mirror per collection out.

A micro-batch is looked at once, then every collection in it is written: its events to the history, their outcome to
the mirror. Every snapshot says which batch made it, so a batch that Spark repeats after a crash finds what it did.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.capture.snapshot.reading import watermark
from tailrace.capture.source.namespaces import EVERYTHING, Namespaces
from tailrace.settings import WarehouseSettings
from tailrace.spark.failures import explained
from tailrace.spark.parts import connected
from tailrace.warehouse.checkpoint import commit_of
from tailrace.warehouse.contract import Ends
from tailrace.warehouse.dead_letters import Letters
from tailrace.warehouse.history import append_history
from tailrace.warehouse.lake import Commit, Lake, configure_catalog
from tailrace.warehouse.lifecycle import apply_end, renamed_to
from tailrace.warehouse.maintenance import Maintenance
from tailrace.warehouse.mirror import Mirror, Staged
from tailrace.warehouse.mirrors import Mirrors
from tailrace.warehouse.summary import Part, Summary, summarise

COLUMNS: Final = (
    "token string, cluster_time long, wall_time timestamp, op string, db string, coll string, _key binary"
    ", document_key string, full_document string, full_document_before string, update_description string, raw binary"
)
"""What the job needs of an event."""
_AT_ONCE: Final = 4
"""Collections that are written at the same time."""
Item = TypeVar("Item")
Result = TypeVar("Result")
_log = logging.getLogger("tailrace.warehouse")


class WarehouseJob:
    """Keeps the tables of the chosen collections."""

    def __init__(
        self, settings: WarehouseSettings, selection: Namespaces = EVERYTHING, *, mirror_suffix: str = ""
    ) -> None:
        self._settings = settings
        self._selection = selection
        self._suffix = mirror_suffix
        self._checkpoint = ""
        self._newest: int | None = None
        self._opened: tuple[Lake, Mirrors, Maintenance] | None = None

    def start(self, events: DataFrame, checkpoint: str, **trigger: Any) -> StreamingQuery:
        """Start the query on a stream of events with the columns `COLUMNS`."""
        configure_catalog(events.sparkSession, self._settings)
        self._checkpoint, self._newest, self._opened = checkpoint, None, None
        writer = events.writeStream.queryName("warehouse").foreachBatch(self.apply)
        writer = writer.option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def apply(self, events: DataFrame, number: int) -> None:
        """Write one micro-batch; any part of it may have been written before."""
        with explained():
            spark = events.sparkSession
            self.write(events, commit_of(spark, self._checkpoint, number) if self._checkpoint else Commit("", number))

    def write(self, events: DataFrame, commit: Commit) -> None:
        """Write events as one batch."""
        began = time.monotonic()
        lake, mirrors, maintenance = self._open(events.sparkSession)
        may_be_replay = self._newest is None or commit.batch <= self._newest
        kept = _complete(events).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            summary = summarise(kept, self._selection)
            commit = replace(commit, token=summary.newest)
            batch = _Batch(lake, mirrors, kept, summary, commit, may_be_replay, Ends(self._settings.ends))
            batch.write()
        finally:
            kept.unpersist()
        self._newest = commit.batch
        counted = sum(part.events for part in summary.parts), len(summary.parts)
        _log.info("batch %d: %d events of %d collections in %.1f s", commit.batch, *counted, time.monotonic() - began)
        maintenance.after_batch(summary)

    def backfill(self, spark: SparkSession, uri: str, namespaces: Sequence[str]) -> str:
        """Take the documents as they are; gives the time to start the stream at, without a hole.

        The tables of one collection after the other are filled; a repetition finds what is there.
        """
        client = connected(uri)
        at = watermark(client)
        chosen = {"namespaces": ",".join(namespaces)} if namespaces else {}
        options = {"uri": uri, "snapshot": "true", **chosen}
        events = spark.read.format("tailrace").options(**options).schema(COLUMNS).load()
        with explained():
            self.write(events, Commit(f"backfill {at.time}:{at.inc}", 0))
        return f"{at.time}:{at.inc}"

    def _open(self, spark: SparkSession) -> tuple[Lake, Mirrors, Maintenance]:
        """Open the catalog in the session of the batches, which is not the one that started the query.

        Every batch comes with a new object for it, so the JVM's own are compared.
        """
        if self._opened is None or self._opened[0].spark._jsparkSession != spark._jsparkSession:
            configure_catalog(spark, self._settings)
            lake = Lake(spark, self._settings.catalog, format_version=self._settings.format_version)
            mirrors = Mirrors(lake, self._settings, self._suffix)
            self._opened = lake, mirrors, Maintenance(lake, mirrors, self._settings)
        return self._opened


class _Batch:
    """One micro-batch on its way into the tables."""

    def __init__(
        self,
        lake: Lake,
        mirrors: Mirrors,
        events: DataFrame,
        summary: Summary,
        commit: Commit,
        may_be_replay: bool,
        ends: Ends,
    ) -> None:
        self._lake = lake
        self._mirrors = mirrors
        self._events = events
        self._summary = summary
        self._commit = commit
        self._may_be_replay = may_be_replay
        self._ends = ends
        self._after: dict[str, Row] = {}
        """The newest end of each collection that ended in this batch."""

    def write(self) -> None:
        """Write histories, letters and mirrors."""
        self._lake.commit_as(self._commit)
        _each(self._summary.parts, self._append)
        for end in self._summary.ends if self._ends is not Ends.KEEP else ():
            self._follow(end)
        changed = [part for part in self._summary.parts if part.changes]
        self._mirror(changed, F.lit(True), self._summary.bad, is_last=True)

    def _follow(self, end: Row) -> None:
        """Let a collection end between what came before and what came after.

        What was done to documents before they were dropped need not be done; what was done before a rename moves.
        """
        touched = self._touched_by(end)
        if not touched:
            return
        if end.op == "rename":
            moved = [part for part in touched if part.namespace == f"{end.db}.{end.coll}"]
            self._mirror(moved, _place("<=", end), 0, is_last=False)
        apply_end(self._lake, self._mirrors, end, self._ends)
        self._after.update((part.namespace, end) for part in touched)

    def _touched_by(self, end: Row) -> list[Part]:
        if end.op == "dropDatabase":
            return [part for part in self._summary.parts if part.database == end.db]
        names = {f"{end.db}.{end.coll}"}
        if end.op == "rename":
            names.add(renamed_to(end))
        return [part for part in self._summary.parts if part.namespace in names]

    def _append(self, part: Part) -> None:
        append_history(self._lake, self._events, part, self._commit, may_be_replay=self._may_be_replay)

    def _mirror(self, parts: Sequence[Part], condition: Column, bad: int, *, is_last: bool) -> None:
        """Bring mirrors to where a part of the batch leaves them; the letters are written first.

        What is written before the last merge (letters, rows made anew for wider columns) is a part of the batch.
        """
        self._lake.commit_as(self._commit, is_whole=False)
        letters = Letters(self._lake, self._commit)
        if bad:
            letters.add_bad_records(self._events, bad)
        with ExitStack() as kept:

            def stage(part: Part) -> tuple[Mirror, Staged]:
                mirror = self._mirrors.get(part.namespace)
                after = self._after.get(part.namespace)
                inside = condition if after is None else condition & _place(">", after)
                events = self._events.where(part.condition() & inside)
                return mirror, kept.enter_context(mirror.staged(events, part))

            staged = _each(parts, stage)
            for mirror, rows in staged:
                letters.add_staged(rows.letters, rows.report.letters, mirror.namespace)
            letters.append(may_be_replay=self._may_be_replay)
            if letters.count:
                _log.warning("batch %d has %d dead letters", self._commit.batch, letters.count)
            self._lake.commit_as(self._commit, is_whole=is_last)
            _each(staged, self._merge)

    def _merge(self, one: tuple[Mirror, Staged]) -> None:
        mirror, rows = one
        mirror.note_drift(rows.report, f"{self._commit.query}/{self._commit.batch}")
        # When a collection ended in the batch, its rows may have moved again just now: then nothing is left out.
        if self._may_be_replay and not self._after and self._lake.has_batch(mirror.table, self._commit):
            return
        mirror.merge(rows)


def _place(comparison: str, end: Row) -> Column:
    """Say where an event stands, compared to the end of a collection."""
    ours, theirs = F.struct("cluster_time", "token"), F.struct(F.lit(end.cluster_time), F.lit(end.token))
    return ours > theirs if comparison == ">" else ours <= theirs


def _each(items: Sequence[Item], do: Callable[[Item], Result]) -> list[Result]:
    """Do something for every collection, some at once; the first error is raised when all have ended."""
    if len(items) < 2:
        return [do(item) for item in items]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, items))


def _complete(events: DataFrame) -> DataFrame:
    """Add the columns of bad records where a source has none."""
    missing: Mapping[str, str] = {"bad_record": "binary", "cause": "string"}
    for name, kind in missing.items():
        if name not in events.columns:
            events = events.withColumn(name, F.lit(None).cast(kind))
    return events
