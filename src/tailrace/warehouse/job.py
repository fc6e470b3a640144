"""The warehouse job: change events in, a history and a mirror per collection out.

A micro-batch is looked at once, then every collection in it is written: its events to the history, their outcome to
the mirror. Every snapshot says which batch made it, so a batch that Spark repeats after a crash finds what it did.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from bson.timestamp import Timestamp
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.capture.snapshot.reading import watermark
from tailrace.capture.source.namespaces import EVERYTHING, Namespaces
from tailrace.fold import End
from tailrace.fold import Ends as FoldedEnds
from tailrace.logs import get_logger
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import WarehouseSettings
from tailrace.spark.checkpoint import QueryCheckpoint, Recorded, records_between
from tailrace.spark.failures import explained
from tailrace.spark.from_kafka import Conversion, check_format, event_reader, events_of, from_dead_letters, is_records
from tailrace.spark.handover import collected
from tailrace.spark.jvm import java_session, jvm_of
from tailrace.spark.lineage import NO_LINEAGE, Lineage, collection_datasets, location_dataset
from tailrace.spark.options import own_options
from tailrace.spark.parts import connected
from tailrace.telemetry import NO_TRACING, SampledEvent, TraceContext, Tracing
from tailrace.telemetry.tracing import written_at
from tailrace.token import ResumeToken
from tailrace.warehouse.batch.driver_batch import DriverWriter
from tailrace.warehouse.batch.spark_batch import SparkBatch
from tailrace.warehouse.columns.contract import Ends as Policy
from tailrace.warehouse.lake import configure_catalog, open_lake
from tailrace.warehouse.mirror.lifecycle import KnownEnds
from tailrace.warehouse.mirror.mirrors import Mirrors
from tailrace.warehouse.summary import Summary, summarise, summarise_rows
from tailrace.warehouse.tables.driver_table import NeedsSpark
from tailrace.warehouse.tables.format import BACKFILL, Commit, Lake, Name, recorded_start
from tailrace.warehouse.tables.names import DEAD_LETTERS_TABLE, TableKind, history_table
from tailrace.warehouse.tables.states import TableState

COLUMNS: Final = (
    "token string, cluster_time long, wall_time timestamp, op string, db string, coll string, _key binary"
    ", document_key string, full_document string, full_document_before string, update_description string, raw binary"
)
"""What the job needs of an event."""
_TRACED: Final = (
    "token",
    "concat_ws('.', db, coll) AS namespace",
    "op",
    "unix_millis(wall_time) AS wall_time",
    "shiftrightunsigned(cluster_time, 32) AS seconds",
)
_BATCHES_BY_SPARK: Final = 100
"""After a table that only Spark can write, so many batches are not tried by the driver."""
_log = get_logger("tailrace.warehouse")


class WarehouseJob:
    """Keeps the tables of the chosen collections."""

    def __init__(
        self,
        settings: WarehouseSettings,
        selection: Namespaces = EVERYTHING,
        *,
        mirror_suffix: str = "",
        uri: str | None = None,
        format: str | None = None,
        tracing: Tracing = NO_TRACING,
        lineage: Lineage = NO_LINEAGE,
    ) -> None:
        """`uri` is that of a source that is read directly (see `_unread`), `format` that of topics."""
        self._settings = settings
        self._selection = selection
        self._suffix = mirror_suffix
        self._uri = uri
        self._format = format
        self._tracing = tracing
        self._lineage = lineage
        self._checkpoint = ""
        self._name = f"job {uuid.uuid4().hex}"
        """Stands for the query of batches that somebody else's query gives to `apply`: nobody knows its checkpoint."""
        self._last: Commit | None = None
        """The last batch that is in the tables, of the query that runs."""
        self._opened: tuple[Lake, Mirrors, Maintenance, KnownEnds] | None = None
        self._driver: DriverWriter | None = None
        self._reader: Conversion | None = None
        """What makes events of records here."""
        self._by_spark = 0
        """The batches that the driver does not try."""

    def start(self, events: DataFrame, checkpoint: str, **trigger: Any) -> StreamingQuery:
        """Start the query on a stream of events with the columns `COLUMNS`, or of records as they are in topics."""
        configure_catalog(events.sparkSession, self._settings)
        self._checkpoint, self._last, self._opened = checkpoint, None, None
        writer = events.writeStream.queryName("warehouse").foreachBatch(self.apply)
        writer = writer.option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def apply(self, events: DataFrame, number: int) -> None:
        """Write one micro-batch; any part of it may have been written before."""
        with explained():
            commit = self._commit(events.sparkSession, number) if self._checkpoint else Commit(self._name, number)
            if not (self._is_small(events.sparkSession, commit) and self._write_in_driver(events, commit)):
                self.write(self._events(events), commit)

    def _events(self, frame: DataFrame) -> DataFrame:
        return events_of(frame, self._format or "", COLUMNS) if is_records(frame) else frame

    def _is_small(self, spark: SparkSession, commit: Commit) -> bool:
        """Tell whether the driver tries to write a batch; on a cluster it does not, there it only plans."""
        limit = self._settings.driver_events
        if not limit or jvm_of(spark) is None or not str(spark.sparkContext.master).startswith("local"):
            return False
        if self._by_spark:
            self._by_spark -= 1
            return False
        if self._uri is not None:  # after the first batch, which may be everything, a source's batches end at 16 MiB
            return self._last is not None
        records = records_between(commit.start, commit.end)
        return records is not None and records <= limit

    def _write_in_driver(self, events: DataFrame, commit: Commit) -> bool:
        """Write a batch without a Spark job but that of reading it; tells whether it was one for the driver."""
        began, began_ns = time.monotonic(), time.time_ns()
        lake, mirrors, _, ends = self._open(events.sparkSession)
        self._driver = self._driver or DriverWriter(lake, mirrors, self._settings)
        found = self._collected(events)
        if found is None or not 0 < found.num_rows <= self._settings.driver_events:
            return False
        summary = summarise_rows(found, self._selection)
        known = FoldedEnds() if Policy(self._settings.ends) is Policy.KEEP else ends.all
        try:
            batch = self._driver.planned(found, summary, known)
        except NeedsSpark as cause:
            _log.debug("batch_needs_spark", batch=commit.batch, cause=str(cause))
            self._by_spark = _BATCHES_BY_SPARK if cause.is_lasting else 0
            return False
        commit = replace(commit, token=summary.newest)
        self._driver.write(batch, commit)
        if self._tracing.is_on:
            sampled = self._tracing.sampler.sampled(found["raw"].to_pylist())
            self._tracing.applied(sampled, "tables", began_ns, is_direct=self._format is None)
        self._done(lake, mirrors, summary, commit, began)
        self._driver.maintain(batch, commit)
        return True

    def _collected(self, events: DataFrame) -> pa.Table | None:
        table = collected(events)
        if is_records(events) and table is not None and table.num_rows:
            if self._reader is None:
                self._reader = event_reader(self._format or "", COLUMNS, keep_bad_records=True)
            table = pa.Table.from_batches(self._reader(table.to_batches()))
        return table

    def write(self, events: DataFrame, commit: Commit) -> None:
        """Write events as one batch."""
        began, began_ns = time.monotonic(), time.time_ns()
        lake, mirrors, maintenance, ends = self._open(events.sparkSession)
        with ExitStack() as kept:
            found = _kept(_complete(events), kept)
            summary = summarise(found, self._selection)
            if summary.bad and not summary.events and self._format is not None:
                sample = found.where("cause IS NOT NULL").take(1)[0].bad_record
                check_format(self._format, summary.bad, bytes(sample))
            policy = Policy(self._settings.ends)
            if summary.ends and policy is not Policy.KEEP:
                lake.commit_as(commit, is_whole=False)
                ends.add(summary.ends)
                unread = self._unread(summary.ends, ends.all)
                if unread and self._uri is not None:
                    found = _kept(found.unionByName(_complete(self._documents(events.sparkSession, unread))), kept)
                    summary = replace(summarise(found, self._selection), ends=summary.ends)
            commit = replace(commit, token=summary.newest)
            chosen = FoldedEnds() if policy is Policy.KEEP else ends.all
            SparkBatch(lake, mirrors, found, summary, commit, policy, chosen).write()
            lake.commit_as(commit, is_whole=False)  # what is done to the tables from here on is not the batch itself
            self._trace(found, began_ns)
        if summary.ends and self._driver is not None:
            self._driver.forget()  # tables may be dropped, and made again
        self._done(lake, mirrors, summary, commit, began)
        maintenance.after_batch(summary)

    def _done(self, lake: Lake, mirrors: Mirrors, summary: Summary, commit: Commit, began: float) -> None:
        """Report a batch that is in the tables."""
        self._emit_lineage(lake, mirrors, summary)
        self._last = commit
        _log.info(
            "batch_applied",
            batch=commit.batch,
            events=sum(part.events for part in summary.parts),
            collections=len(summary.parts),
            seconds=round(time.monotonic() - began, 1),
        )

    def _emit_lineage(self, lake: Lake, mirrors: Mirrors, summary: Summary) -> None:
        """Tell of the collections and tables of a batch, where lineage is wanted."""
        if not self._lineage.is_on:
            return
        tables = [history_table(part.namespace) for part in summary.parts]
        tables += [mirrors.get(part.namespace).table for part in summary.parts if part.changes]
        outputs = [location_dataset(lake.location(table)) for table in tables if lake.exists(table)]
        namespaces = [part.namespace for part in summary.parts]
        self._lineage.uses(collection_datasets(self._uri, namespaces) if self._uri else (), outputs)

    def _trace(self, written: DataFrame, began: int) -> None:
        """Tell of the sampled events that are in the tables now."""
        if not self._tracing.is_on:
            return
        chosen = written.where(self._tracing.sampler.sql).where("op <> 'read'").selectExpr(*_TRACED)
        events = [
            SampledEvent(TraceContext.of(row.token), row.namespace, row.op, written_at(row.wall_time, row.seconds))
            for row in chosen.collect()
        ]
        self._tracing.applied(events, "tables", began, is_direct=self._format is None)

    def backfill(self, spark: SparkSession, uri: str, namespaces: Sequence[str]) -> str:
        """Take the documents as they are; gives the time to start the stream at, without a hole.

        The tables of one collection after the other are filled; a repetition finds what is there. Rows that are older
        than this and were not found among the documents are of documents that were deleted while nobody followed.
        """
        at = watermark(connected(uri))
        with explained():
            self.write(_snapshot(spark, uri, namespaces), Commit(f"{BACKFILL}{at.time}:{at.inc}", 0))
            self._remove_unseen(spark, at)
        return f"{at.time}:{at.inc}"

    def replay_dead_letters(self, spark: SparkSession, format: str) -> tuple[int, int]:
        """Write the dead letters that can be read now; gives how many were, and how many were not, which stay."""
        lake = self._open(spark)[0]
        if not lake.exists(DEAD_LETTERS_TABLE):
            return 0, 0
        records = lake.table(DEAD_LETTERS_TABLE).where("namespace = ''").selectExpr("record AS bad_record").distinct()
        events = from_dead_letters(records, format, COLUMNS).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            total, unread = records.count(), events.where("cause IS NOT NULL").select("bad_record")
            left = unread.count()
            now = int(time.time() * 1000)
            with explained():
                self.write(events.where("cause IS NULL"), Commit(f"replay {now}", 0))
            records.join(unread, "bad_record", "left_anti").createOrReplaceTempView("tailrace_replayed")
            spark.sql(
                f"MERGE INTO {lake.sql_name(DEAD_LETTERS_TABLE)} t USING tailrace_replayed s"
                " ON t.record = s.bad_record AND t.namespace = '' WHEN MATCHED THEN DELETE"
            )
            return total - left, left
        finally:
            events.unpersist()

    def recorded(self, spark: SparkSession) -> Recorded | None:
        """Say how far the tables are, where a job has written some of the selection before."""
        lake, *_ = self._open(spark)
        return recorded_start(state for state in lake.states() if self._follows(state))

    def _remove_unseen(self, spark: SparkSession, at: Timestamp) -> None:
        lake, mirrors, *_ = self._open(spark)
        version, token = ClusterTime.from_timestamp(at), ResumeToken.high_water_mark(at).hex
        for state in list(lake.states()):
            if state.kind is TableKind.MIRROR and self._follows(state):
                mirrors.get(state.namespace).remove_older(version, token)

    def _follows(self, state: TableState) -> bool:
        return bool(state.namespace) and self._selection.contains_event(state.namespace)

    def _commit(self, spark: SparkSession, batch: int) -> Commit:
        """Give what the snapshots of a batch shall say."""
        checkpoint, last = QueryCheckpoint(spark, self._checkpoint), self._last
        if last is not None and last.batch == batch - 1:
            return Commit(last.query, batch, last.end, checkpoint.offsets(batch))
        return Commit(checkpoint.query, batch, checkpoint.offsets(batch - 1), checkpoint.offsets(batch))

    def _unread(self, new: Sequence[End], ends: FoldedEnds) -> list[str]:
        """Give the collections whose documents no event tells: a rename brought them from where nothing is read.

        The producer of topics sends such documents by itself; a stream that comes from the source directly reads them.
        """
        renamed = [end for end in new if ends.brings_unknown(end)]
        found = {end.to: location for end in renamed if end.to and (location := ends.location_of(end.to, end.moment))}
        if found and self._uri is None:
            _log.warning("renamed_from_unread_collections", namespaces=sorted(found))
        return sorted(set(found.values()))

    def _documents(self, spark: SparkSession, namespaces: Sequence[str]) -> DataFrame:
        assert self._uri is not None
        _log.warning("reading_renamed_documents", namespaces=list(namespaces))
        return _snapshot(spark, self._uri, namespaces)

    def _open(self, spark: SparkSession) -> tuple[Lake, Mirrors, Maintenance, KnownEnds]:
        """Open the catalog in the session of the batches, which is not the one that started the query.

        Every batch comes with a new object for it, so the JVM's own are compared.
        """
        if self._opened is None or java_session(self._opened[0].spark) != java_session(spark):
            configure_catalog(spark, self._settings)
            lake = open_lake(spark, self._settings)
            mirrors = Mirrors(lake, self._settings, self._suffix)
            ends = KnownEnds(lake, self._selection.contains_name)
            self._opened = lake, mirrors, Maintenance(lake, mirrors, self._settings), ends
            self._driver = None
        return self._opened


def _snapshot(spark: SparkSession, uri: str, namespaces: Sequence[str]) -> DataFrame:
    """Read documents as they are."""
    chosen = {"namespaces": ",".join(namespaces)} if namespaces else {}
    return spark.read.format("tailrace").options(**own_options(uri), snapshot="true", **chosen).schema(COLUMNS).load()


def _kept(events: DataFrame, until: ExitStack) -> DataFrame:
    frame = events.persist(StorageLevel.MEMORY_AND_DISK)
    until.callback(frame.unpersist)
    return frame


def _complete(events: DataFrame) -> DataFrame:
    """Add the columns of bad records where a source has none."""
    missing: Mapping[str, str] = {"bad_record": "binary", "cause": "string"}
    for name, kind in missing.items():
        if name not in events.columns:
            events = events.withColumn(name, F.lit(None).cast(kind))
    return events


class Maintenance:
    """Keeps tables small to read and their metadata short: small files become large ones, old snapshots leave.

    Without it every micro-batch would leave a few files and a line in the metadata for ever, and the cost of a batch
    would grow with the days the job has run.
    """

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
