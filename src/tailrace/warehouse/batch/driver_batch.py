"""Small batches, written by the driver itself: a Spark job costs more than a thousand events do.

A batch is planned as a whole before anything of it is written. What needs more than rows that come, change and go (a
collection that ends, a new column, a dead letter) is left to Spark, as is every table that the driver cannot write.
The commits say of the batch what Spark's say, so a batch that comes again finds it done, whoever did it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.fold import BASE, DATA_OPERATIONS, Ends
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.batch.compaction import Compaction
from tailrace.warehouse.batch.key_index import Change, KeyIndex
from tailrace.warehouse.batch.table_files import RecentFiles, TableFiles
from tailrace.warehouse.mirror.lifecycle import locations
from tailrace.warehouse.mirror.mirror import Mirror
from tailrace.warehouse.mirror.mirrors import Mirrors
from tailrace.warehouse.mirror.staging import DEAD_LETTER, EVENT_COLUMNS, REPORT, ROW, Report, folding
from tailrace.warehouse.summary import Part, Summary
from tailrace.warehouse.tables.conflicts import Conflict, write_once
from tailrace.warehouse.tables.driver_table import DataFile, DriverTable, NeedsSpark, Range
from tailrace.warehouse.tables.format import Commit, Lake, Name
from tailrace.warehouse.tables.names import history_table

_DAY: Final = "cluster_time_day"
"""The partition of a history."""
_BASE_COLUMNS: Final = ("_key", "_version", "_token", "_is_deleted", "_refused", "_bson", "_told_as")


@dataclass(frozen=True, slots=True)
class HistoryRows:
    """The events of a batch for one history."""

    part: Part
    table: DriverTable
    recent: RecentFiles
    events: pa.Table


@dataclass(frozen=True, slots=True)
class _MirrorRows:
    """The rows of a batch for one mirror, one per document."""

    mirror: Mirror
    table: DriverTable
    index: KeyIndex
    rows: pa.Table
    report: Report


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that the driver can write."""

    summary: Summary
    histories: Sequence[HistoryRows]
    mirrors: Sequence[_MirrorRows]


class DriverWriter:
    """Writes the small batches of one warehouse."""

    def __init__(self, lake: Lake, mirrors: Mirrors, settings: WarehouseSettings) -> None:
        self._lake = lake
        self._mirrors = mirrors
        self._settings = settings
        self._batches = 0
        self._tables: dict[Name, DriverTable] = {}
        self._indexes: dict[Name, KeyIndex] = {}
        self._recent: dict[Name, RecentFiles] = {}
        """The files of histories that may be put together."""
        self._compactions: dict[Name, Compaction] = {}

    def planned(self, events: pa.Table, summary: Summary, ends: Ends) -> PlannedBatch:
        """Plan a batch; raises NeedsSpark when it is none for the driver. Nothing is written."""
        if summary.bad or summary.ends:
            raise NeedsSpark("a collection that ends, or records that cannot be read")
        histories, mirrors = [], []
        for part in summary.parts:
            if part.collection is None:
                raise NeedsSpark("events of a database")
            rows = events.filter(_of(events, part))
            histories.append(HistoryRows(part, *self._history(part), rows))
            if part.changes:
                self._check_location(part, ends)
                mirrors.append(self._staged(part, rows))
        return PlannedBatch(summary, histories, mirrors)

    def write(self, batch: PlannedBatch, commit: Commit) -> None:
        """Write a planned batch: histories first, as Spark does."""
        for history in batch.histories:
            append_events(history, commit)
        for staged in batch.mirrors:
            staged.mirror.note_drift(staged.report, f"{commit.query}/{commit.batch}")
            _merge(staged, commit)

    def maintain(self, batch: PlannedBatch, commit: Commit) -> None:
        """Look after the tables of a batch that is done: compact beside the next, expire snapshots now and then."""
        properties = commit.properties(is_whole=False)
        self._batches += 1
        is_due = self._settings.maintain_batches and self._batches % self._settings.maintain_batches == 0
        files: dict[Name, tuple[TableFiles, str]] = {
            **{history_table(rows.part.namespace): (rows.recent, "token") for rows in batch.histories},
            **{staged.mirror.table: (staged.index, "_key") for staged in batch.mirrors},
        }
        for name, (known, order) in files.items():
            compaction = self._compaction(name, self._tables[name], order)
            if (done := compaction.take()) is not None:
                with suppress(Conflict, NeedsSpark):
                    known.replace(done, properties)
            compaction.begin(known.sources())
            if is_due:
                self._tables[name].expire(self._settings.keep_hours)

    def _compaction(self, name: Name, table: DriverTable, order: str) -> Compaction:
        if name not in self._compactions:
            share = self._settings.compaction_share if self._settings.maintain_batches else 0.0
            self._compactions[name] = Compaction(table, order, share)
        return self._compactions[name]

    def forget(self) -> None:
        """Open all tables again."""
        for compaction in self._compactions.values():
            compaction.wait()
        for kept in (self._tables, self._indexes, self._recent, self._compactions):
            kept.clear()

    def _history(self, part: Part) -> tuple[DriverTable, RecentFiles]:
        name = history_table(part.namespace)
        table = self._table(name)
        recent = self._recent.setdefault(name, RecentFiles(table))
        recent.refresh()
        if table.partition != _DAY:
            raise NeedsSpark("a history that is not partitioned by day", is_lasting=True)
        return table, recent

    def _table(self, name: Name) -> DriverTable:
        if name not in self._tables:
            if not self._lake.exists(name):
                raise NeedsSpark("a table that is to be made")
            opened = self._lake.driver_table(name)
            if opened is None:
                raise NeedsSpark("a table that the driver cannot write", is_lasting=True)
            self._tables[name] = opened
        return self._tables[name]

    def _check_location(self, part: Part, ends: Ends) -> None:
        """Events of a collection that had another name then go to several mirrors, by conditions that are SQL."""
        if locations(ends, part.namespace, part.least_time, "", "") != [(part.namespace, "TRUE")]:
            raise NeedsSpark("a collection that ended")

    def _staged(self, part: Part, events: pa.Table) -> _MirrorRows:
        name = self._mirrors.table(part.namespace)
        table = self._table(name)
        mirror = self._mirrors.get(part.namespace)
        index = self._indexes.setdefault(name, KeyIndex(table))
        index.refresh()
        changes = events.filter(pc.and_(pc.is_in(events["op"], pa.array(DATA_OPERATIONS)), events["_key"].is_valid()))
        changes = changes.append_column("_told_as", pa.nulls(changes.num_rows, pa.string())).select(EVENT_COLUMNS)
        given = [*changes.to_batches(), *(_base(index, events) if part.deltas else ())]
        rows, report = _folded(folding(mirror.plan())(given))
        if report.dead_letters or report.refused or mirror.needs_columns(report):
            raise NeedsSpark("documents that do not fit the columns")
        if report.deleted and mirror.marks_deletes:
            raise NeedsSpark("deletes that are marked")
        own = table.schema
        if {*own.names, "_row"} != set(rows.schema.names):
            raise NeedsSpark("a mirror with columns of somebody else", is_lasting=True)
        return _MirrorRows(mirror, table, index, rows.select(own.names).cast(own).sort_by("_key"), report)


def append_events(history: HistoryRows, commit: Commit) -> None:
    """Append the events of one collection to its history, each once, in one commit."""
    recent, part = history.recent, history.part
    inside = Range("token", part.least_token, part.greatest_token)

    def append() -> None:
        files = _written(history, inside)
        recent.snapshot = history.table.append(files, commit.properties(), recent.snapshot, inside)
        recent.append_events(files, part.greatest_token)

    _once(append, history.table, recent, commit)


def _once(write: Callable[[], None], table: DriverTable, files: TableFiles, commit: Commit) -> None:
    write_once(write, lambda: table.has_batch(commit.query, commit.batch), files.refresh)


def _written(history: HistoryRows, inside: Range) -> list[DataFile]:
    """Write the events that the history does not have, one file per day."""
    table = history.table
    new = history.events.take(pa.array(_new_events(history, inside), pa.int64()))
    seconds = pc.shift_right(new["cluster_time"], 32)
    times = pc.multiply(seconds, 1_000_000).cast(pa.timestamp("us", tz="UTC"))
    rows = new.append_column("version", new["cluster_time"]).set_column(
        new.schema.get_field_index("cluster_time"), "cluster_time", times
    )
    rows = rows.select(table.schema.names).cast(table.schema)
    days = (seconds.to_numpy() // 86_400).tolist()
    files = []
    for day in sorted(set(days)):
        of_day = rows.filter(pa.array([one == day for one in days])) if len(set(days)) > 1 else rows
        date = datetime.fromtimestamp(day * 86_400, UTC).date()
        files.append(table.write_rows(of_day, f"{_DAY}={date.isoformat()}"))
    return files


def _new_events(history: HistoryRows, inside: Range) -> list[int]:
    """Give the events that the history does not have, each once; one is known by its token and key."""
    known: set[tuple[str, bytes | None]] = set()
    for path in history.recent.with_tokens(inside):
        rows = history.table.parquet(path).read(["token", "_key"])
        is_inside = pc.and_(
            pc.greater_equal(rows["token"], inside.least), pc.less_equal(rows["token"], inside.greatest)
        )
        known.update(_pairs(rows.filter(is_inside)))
    new = []
    for number, pair in enumerate(_pairs(history.events)):
        if pair not in known:
            known.add(pair)
            new.append(number)
    return new


def _pairs(rows: pa.Table) -> Iterable[tuple[str, bytes | None]]:
    return zip(rows["token"].to_pylist(), rows["_key"].to_pylist(), strict=True)


def _of(events: pa.Table, part: Part) -> Any:
    return pc.and_(pc.equal(events["db"], part.database), pc.equal(events["coll"], part.collection))


def _folded(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Table, Report]:
    """Divide what a task gives into rows and the report; nothing is kept of letters, which Spark writes."""
    table, report = pa.Table.from_batches(batches), Report()
    for text in table.filter(pc.equal(table["_row"], REPORT))["_rest"].to_pylist():
        report.add(text)
    assert report.dead_letters or not pc.any(pc.equal(table["_row"], DEAD_LETTER)).as_py()
    return table.filter(pc.equal(table["_row"], ROW)), report


def _base(index: KeyIndex, events: pa.Table) -> Iterator[pa.RecordBatch]:
    """Give what the mirror has of the documents of updates that bring none."""
    is_delta = pc.and_(pc.equal(events["op"], "update"), events["full_document"].is_null())
    keys = _unique(events.filter(pc.and_(is_delta, events["_key"].is_valid()))["_key"])
    if not len(keys):
        return
    ends = pc.min_max(keys).as_py()
    for found in index.find(keys, ends["min"], ends["max"]):
        rows = index.rows(found.path, found.positions, _BASE_COLUMNS)
        rows = rows.filter(pc.and_(pc.invert(rows["_is_deleted"]), rows["_refused"].is_null()))
        columns = [rows[name] for name in ("_key", "_version", "_token", "_bson", "_told_as")]
        columns.insert(3, pa.array([BASE] * rows.num_rows, pa.string()))
        yield from pa.table(columns, names=list(EVENT_COLUMNS)).to_batches()


def _unique(column: pa.ChunkedArray) -> pa.Array:
    return pc.unique(column)


def _merge(staged: _MirrorRows, commit: Commit) -> None:
    """Take over what is newer."""
    properties = commit.properties()
    _once(lambda: staged.index.commit(_change(staged), properties), staged.table, staged.index, commit)


def _change(staged: _MirrorRows) -> Change:
    """Compare the rows with those that are there: only what is newer changes one."""
    rows, index, change = staged.rows, staged.index, Change()
    if not rows.num_rows:
        return change
    keys = rows["_key"].combine_chunks()
    versions = rows["_version"].to_numpy()
    taken = np.ones(rows.num_rows, bool)
    for found in index.find(keys, keys[0].as_py(), keys[-1].as_py()):
        is_newer = versions[found.numbers] > found.versions
        for tie in np.flatnonzero(versions[found.numbers] == found.versions):
            (known,) = index.rows(found.path, found.positions[[tie]], ["_token"])["_token"].to_pylist()
            is_newer[tie] = rows["_token"][int(found.numbers[tie])].as_py() > known
        taken[found.numbers] = is_newer
        if is_newer.any():
            change.gone[found.path] = index.gone_with(found.path, found.positions[is_newer])
    is_deleted = np.array(rows["_is_deleted"].to_pylist(), bool)
    written = rows.filter(pa.array(taken & ~is_deleted))
    if written.num_rows:
        change.added.append(index.write_rows(written))
        change.keys.append((written["_key"].combine_chunks(), written["_version"].to_numpy()))
    return change
