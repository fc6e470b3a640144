"""The warehouse job: change events in, a history and a mirror per collection out.

A micro-batch is looked at once, then every collection in it is written: its events to the history, their outcome to
the mirror. Every snapshot says which batch made it, so a batch that Spark repeats after a crash finds what it did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from bson.timestamp import Timestamp
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.capture.snapshot.reading import watermark
from tailrace.capture.source.namespaces import EVERYTHING, Namespaces
from tailrace.fold import End
from tailrace.fold import Ends as FoldedEnds
from tailrace.logs import get_logger
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import WarehouseSettings
from tailrace.spark.checkpoint import QueryCheckpoint, Recorded
from tailrace.spark.failures import explained
from tailrace.spark.from_kafka import check_format, from_dead_letters
from tailrace.spark.jvm import java_session
from tailrace.spark.lineage import NO_LINEAGE, Lineage, collection_datasets, location_dataset
from tailrace.spark.options import own_options
from tailrace.spark.parts import connected
from tailrace.telemetry import NO_TRACING, SampledEvent, TraceContext, Tracing
from tailrace.telemetry.tracing import written_at
from tailrace.token import ResumeToken
from tailrace.warehouse.contract import Ends as Policy
from tailrace.warehouse.dead_letters import DeadLetters
from tailrace.warehouse.history import append_history
from tailrace.warehouse.lake import Commit, Lake, configure_catalog, open_lake
from tailrace.warehouse.lifecycle import KnownEnds, follow, locations
from tailrace.warehouse.maintenance import Maintenance
from tailrace.warehouse.mirror import Mirror, Staged
from tailrace.warehouse.mirrors import Mirrors
from tailrace.warehouse.names import DEAD_LETTERS_TABLE, TableKind, history_table
from tailrace.warehouse.summary import Part, Summary, summarise
from tailrace.warehouse.tables import Snapshot, TableState

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
_AT_ONCE: Final = 4
"""Collections that are written at the same time."""
Item = TypeVar("Item")
Result = TypeVar("Result")
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
        """`uri` is that of a source that is read directly (see `_Batch`), `format` that of topics."""
        self._settings = settings
        self._selection = selection
        self._suffix = mirror_suffix
        self._uri = uri
        self._format = format
        self._tracing = tracing
        self._lineage = lineage
        self._checkpoint = ""
        self._newest: int | None = None
        self._opened: tuple[Lake, Mirrors, Maintenance, KnownEnds] | None = None

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
            self.write(events, self._commit(events.sparkSession, number) if self._checkpoint else Commit("", number))

    def write(self, events: DataFrame, commit: Commit) -> None:
        """Write events as one batch."""
        began, began_ns = time.monotonic(), time.time_ns()
        lake, mirrors, maintenance, ends = self._open(events.sparkSession)
        may_be_replay = self._newest is None or commit.batch <= self._newest
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
            _Batch(lake, mirrors, found, summary, commit, may_be_replay, policy, chosen).write()
            lake.commit_as(commit, is_whole=False)  # what is done to the tables from here on is not the batch itself
            self._trace(found, began_ns)
        self._emit_lineage(lake, mirrors, summary)
        self._newest = commit.batch
        _log.info(
            "batch_applied",
            batch=commit.batch,
            events=sum(part.events for part in summary.parts),
            collections=len(summary.parts),
            seconds=round(time.monotonic() - began, 1),
        )
        maintenance.after_batch(summary)

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
        checkpoint = QueryCheckpoint(spark, self._checkpoint)
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
        return self._opened


class _Batch:
    """One micro-batch on its way into the tables.

    Its events go to the mirror of the name that their collection has now, by all the ends that are known; so do the
    rows that were there before, when an end is new.
    """

    def __init__(
        self,
        lake: Lake,
        mirrors: Mirrors,
        events: DataFrame,
        summary: Summary,
        commit: Commit,
        may_be_replay: bool,
        policy: Policy,
        ends: FoldedEnds,
    ) -> None:
        self._lake = lake
        self._mirrors = mirrors
        self._events = events
        self._summary = summary
        self._commit = commit
        self._may_be_replay = may_be_replay
        self._policy = policy
        self._ends = ends

    def write(self) -> None:
        """Write histories, letters and mirrors."""
        self._lake.commit_as(self._commit)
        _each(self._summary.parts, self._append)
        if self._summary.ends and self._policy is not Policy.KEEP:
            self._lake.commit_as(self._commit, is_whole=False)
            follow(self._lake, self._mirrors, self._ends, self._summary.ends, self._policy)
        self._mirror(self._by_namespace(), self._summary.bad)

    def _by_namespace(self) -> list[TablePart]:
        """Divide the events of documents by the mirror they belong to."""
        found: dict[str, TablePart] = {}
        for part in self._summary.parts:
            if not part.changes:
                continue
            for location, condition in locations(self._ends, part.namespace, part.least_time, "cluster_time", "token"):
                if location is not None:
                    one = TablePart(location, part, part.condition() & F.expr(condition))
                    found[location] = found[location].joined(one) if location in found else one
        return list(found.values())

    def _append(self, part: Part) -> None:
        append_history(self._lake, self._events, part, self._commit, may_be_replay=self._may_be_replay)

    def _mirror(self, parts: Sequence[TablePart], bad: int) -> None:
        """Bring mirrors to where the batch leaves them; the letters are written first.

        What is written before the last merge (letters, rows made anew for wider columns) is a part of the batch.
        """
        self._lake.commit_as(self._commit, is_whole=False)
        dead_letters = DeadLetters(self._lake, self._commit)
        if bad:
            dead_letters.add_bad_records(self._events, bad)
        with ExitStack() as kept:

            def stage(one: TablePart) -> tuple[Mirror, Staged]:
                mirror = self._mirrors.get(one.namespace)
                return mirror, kept.enter_context(mirror.staged(self._events.where(one.condition), one.part))

            staged = _each(parts, stage)
            for mirror, rows in staged:
                dead_letters.add_staged(rows.dead_letters, rows.report.dead_letters, mirror.namespace)
            dead_letters.append(may_be_replay=self._may_be_replay)
            if dead_letters.count:
                _log.warning("dead_letters_written", batch=self._commit.batch, count=dead_letters.count)
            self._lake.commit_as(self._commit)
            _each(staged, self._merge)

    def _merge(self, one: tuple[Mirror, Staged]) -> None:
        mirror, rows = one
        mirror.note_drift(rows.report, f"{self._commit.query}/{self._commit.batch}")
        if self._may_be_replay and self._lake.has_batch(mirror.table, self._commit):
            return
        mirror.merge(rows)


@dataclass(frozen=True, slots=True)
class TablePart:
    """The events of a batch that belong to one mirror."""

    namespace: str
    part: Part
    """What is known of them all."""
    condition: Column

    def joined(self, other: TablePart) -> TablePart:
        """Take those along that were told under another name of the collection."""
        return TablePart(self.namespace, self.part.joined(other.part), self.condition | other.condition)


def _snapshot(spark: SparkSession, uri: str, namespaces: Sequence[str]) -> DataFrame:
    """Read documents as they are."""
    chosen = {"namespaces": ",".join(namespaces)} if namespaces else {}
    return spark.read.format("tailrace").options(**own_options(uri), snapshot="true", **chosen).schema(COLUMNS).load()


def _kept(events: DataFrame, until: ExitStack) -> DataFrame:
    frame = events.persist(StorageLevel.MEMORY_AND_DISK)
    until.callback(frame.unpersist)
    return frame


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


BACKFILL: Final = "backfill "
"""With a time behind it, the name of the query of a backfill."""
_START_OPTIONS: Final = ("startAfter", "startAtOperationTime")
_QUERY: Final = "tailrace.query"


def recorded_start(states: Iterable[TableState]) -> Recorded | None:
    """Say where the newest batch in these tables begins; None when no job has written them.

    That batch may be in some tables only, so it is the one to begin with again.
    """
    ours = ((one, state) for state in states for one in state.snapshots if _QUERY in one.properties)
    newest = max(ours, key=lambda found: found[0].at, default=None)
    if newest is None:
        return None
    snapshot, state = newest
    return Recorded(f"the table {state.name}", f"{snapshot.at:%Y-%m-%d %H:%M:%S} UTC", _start(snapshot))


def _start(snapshot: Snapshot) -> Mapping[str, str] | None:
    if snapshot.properties[_QUERY].startswith(BACKFILL):
        return None  # a load that was cut off has filled some tables only, and nothing tells it from a whole one
    begins = json.loads(snapshot.properties.get("tailrace.offsets.start") or "{}")
    if isinstance(begins.get("token"), str):
        return {"startAfter": begins["token"]}
    return {name: begins[name] for name in _START_OPTIONS if name in begins} or None
