"""The mirror of a collection: one row per document, as the newest event left it.

Rows are merged by `_key`, and a row changes only by something newer than itself, so a batch that comes again finds
everything done. One MERGE makes one snapshot: readers see a batch whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tailrace.errors import SchemaDrifted, SettingsError
from tailrace.fold import BASE, DATA_OPERATIONS
from tailrace.logs import get_logger
from tailrace.warehouse.columns.contract import Contract, Rules
from tailrace.warehouse.columns.evolution import (
    DRIFT_PROPERTY,
    META,
    Change,
    Drift,
    Evolution,
    Limits,
    add_drift,
    described,
    evolve,
    read_drift,
    write_drift,
)
from tailrace.warehouse.columns.shapes import Columns, leaves, shape_text
from tailrace.warehouse.mirror.staging import (
    DEAD_LETTER,
    EVENT_COLUMNS,
    JSON_COLUMNS,
    RECODED,
    REPORT,
    ROW,
    VARIANT_COLUMNS,
    Plan,
    Report,
    Task,
    encoding,
    folding,
    shape_of_type,
    spark_type,
)
from tailrace.warehouse.summary import IS_DELTA, Part
from tailrace.warehouse.tables.format import Lake, Name, sql_text
from tailrace.warehouse.tables.names import TableKind, mirror_table, quoted
from tailrace.warehouse.tables.states import CONTRACT_PROPERTY

COLUMNS_PROPERTY: Final = "tailrace.columns"
CHOICE_PROPERTY: Final = "tailrace.choice"
COUNTED_PROPERTY: Final = "tailrace.drift.counted"
_BYTES_PER_TASK: Final = 8 * 1024 * 1024
"""A task holds its events in memory, and small batches are not worth many tasks."""
_ONE_COLUMN: Final = {Contract.JSON: JSON_COLUMNS, Contract.VARIANT: VARIANT_COLUMNS}
"""The contracts that keep a document in one column."""
_NEWER: Final = "(s._version > t._version OR (s._version = t._version AND s._token > t._token))"
_log = get_logger("tailrace.warehouse")


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows of a batch for one mirror, ready to be merged."""

    frame: DataFrame
    report: Report

    @property
    def rows(self) -> DataFrame:
        """What is to be merged; that this is a part of what is kept is why Spark thinks of a Bloom filter."""
        return self.frame.where(F.col("_row") == ROW).drop("_row")

    @property
    def dead_letters(self) -> DataFrame:
        """What could not be applied."""
        return self.frame.where(F.col("_row") == DEAD_LETTER)


class Mirror:
    """The mirror of one collection."""

    def __init__(self, lake: Lake, namespace: str, rules: Rules, table: Name | None = None) -> None:
        self._lake = lake
        self._rules = rules
        self.namespace = namespace
        self.table = table or mirror_table(namespace)
        self._format_limits = Limits(10_000, in_place=lake.type_promotions, name=lake.column_name)
        self.columns = self._open()

    @contextmanager
    def staged(self, events: DataFrame, part: Part) -> Iterator[Staged]:
        """Fold the events of the collection and widen the columns for them; the rows are kept until the end."""
        rows = events.where(F.col("op").isin(*DATA_OPERATIONS) & F.col("_key").isNotNull())
        rows = rows.withColumn("_told_as", _other_than(F.concat_ws(".", "db", "coll"), self.namespace))
        input_ = rows.select(*EVENT_COLUMNS)
        if part.deltas and part.least_key is not None and part.greatest_key is not None:
            inside = _between("_key", part.least_key, part.greatest_key)
            input_ = input_.unionByName(self._base(rows.where(IS_DELTA), inside))
        tasks = max(1, -(-part.size // _BYTES_PER_TASK))
        with self._fitted(input_.repartition(tasks, "_key"), folding) as staged:
            yield staged

    def take_over(self, other: Mirror, condition: str) -> None:
        """Take the rows of another mirror for which something holds."""
        told_as = F.coalesce("_told_as", F.lit(other.namespace))
        rows = self._lake.table(other.table).where(condition)
        rows = rows.withColumn("_told_as", _other_than(told_as, self.namespace)).select(*RECODED)
        with self._fitted(rows, encoding) as staged:
            self.merge(staged)

    def merge(self, staged: Staged) -> None:
        """Take over what is newer."""
        if staged.report.least is None:
            return
        rows = _with_variants(staged.rows) if self._rules.contract is Contract.VARIANT else staged.rows
        with self._lake.view(rows) as view:
            self._lake.spark.sql(self.merge_statement(view, staged.report))

    def remove_older(self, version: int, token: str) -> None:
        """Let the rows leave that nothing as new as this was heard of: their documents are gone."""
        table = self._lake.sql_name(self.table)
        older = f"(_version < {version} OR (_version = {version} AND _token < {sql_text(token)}))"
        if not self._rules.marks_deletes:
            self._lake.spark.sql(f"DELETE FROM {table} WHERE {older}")
            return
        marked = f"_is_deleted = true, _version = {version}, _token = {sql_text(token)}"
        self._lake.spark.sql(f"UPDATE {table} SET {marked} WHERE {older} AND NOT _is_deleted")

    def merge_statement(self, view: str, report: Report) -> str:
        """Give the SQL that takes over what is newer from a view."""
        assert report.least is not None
        assert report.greatest is not None
        names = [*META, *self.columns]
        inserted = ", ".join(f"s.`{name}`" for name in names)
        listed = ", ".join(f"`{name}`" for name in names)
        new = "s._refused IS NULL" if self._rules.marks_deletes else "s._refused IS NULL AND NOT s._is_deleted"
        inside = _between("t._key", report.least, report.greatest)
        return (
            f"MERGE INTO {self._lake.sql_name(self.table)} t USING {quoted(view)} s ON t._key = s._key AND {inside}"
            f" {' '.join(self._when_matched(report))}"
            f" WHEN NOT MATCHED AND {new} THEN INSERT ({listed}) VALUES ({inserted})"
        )

    def _when_matched(self, report: Report) -> Iterator[str]:
        """Say what becomes of rows that are there.

        A clause that keeps some columns of a row makes the MERGE read all columns of all rows it compares, so each is
        left out of batches that cannot need it.
        """
        marked = ", ".join(f"t.{name} = s.{name}" for name in ("_version", "_token", "_is_deleted", "_told_as"))
        deleted = f"UPDATE SET {marked}" if self._rules.marks_deletes else "DELETE"
        if report.deleted:
            yield f"WHEN MATCHED AND {_NEWER} AND s._is_deleted THEN {deleted}"
        if report.refused:
            kept = ", ".join(f"t.{name} = s.{name}" for name in ("_version", "_token", "_refused", "_told_as"))
            yield f"WHEN MATCHED AND {_NEWER} AND s._refused IS NOT NULL THEN UPDATE SET {kept}"
        updated = ", ".join(f"t.`{name}` = s.`{name}`" for name in [*META, *self.columns])
        yield f"WHEN MATCHED AND {_NEWER} THEN UPDATE SET {updated}"

    def note_drift(self, report: Report, location: str) -> None:
        """Count what fitted nowhere, with the table; `location` (a batch) is counted once."""
        found = self._misfits(report)
        if not found or self._lake.properties(self.table).get(COUNTED_PROPERTY) == location:
            return
        listed = [f"{one.field} ({one.found}, {one.count} times)" for one in found]
        _log.warning("values_fit_no_column", namespace=self.namespace, fields=listed)
        self._keep_drift(found, {COUNTED_PROPERTY: location})

    @property
    def marks_deletes(self) -> bool:
        """Whether rows of deleted documents stay."""
        return self._rules.marks_deletes

    def needs_columns(self, report: Report) -> bool:
        """Tell whether documents that tasks report need other columns; raises where the contract stops the job."""
        return bool(self._evolution(report).changes)

    def plan(self) -> Plan:
        """How documents become rows now."""
        return Plan(
            JSON_COLUMNS if self._rules.has_one_column else self.columns,
            as_json=self._rules.has_one_column,
            refuses=self._refuses,
            marks=self._rules.marks_deletes,
            choice=self._rules.choice,
        )

    @property
    def _refuses(self) -> bool:
        """Whether a document that does not fit becomes a letter."""
        is_strict = self._rules.contract is Contract.STRICT
        return is_strict and self._is_closed and self._rules.dead_letters_drift and "_id" in self.columns

    # --- rows

    def _base(self, events: DataFrame, inside: str) -> DataFrame:
        """Give what the mirror has of the documents in these events."""
        keys = events.select("_key").distinct()
        rows = self._lake.table(self.table).where(f"{inside} AND NOT _is_deleted AND _refused IS NULL")
        found = rows.join(F.broadcast(keys), "_key", "left_semi")
        return found.select(
            "_key",
            F.col("_version").alias("cluster_time"),
            F.col("_token").alias("token"),
            F.lit(BASE).alias("op"),
            F.col("_bson").alias("raw"),
            "_told_as",
        )

    @contextmanager
    def _fitted(self, rows: DataFrame, task: Callable[[Plan], Task]) -> Iterator[Staged]:
        """Make rows for the columns, and once more when these had to be widened for them."""
        with self._kept(rows, task) as first:
            evolution = self._evolution(first.report)
            if not evolution.changes:
                yield first
                return
            self._widen(evolution)
            made = first.frame.where(F.col("_row") == ROW).select(*RECODED)
            with self._kept(made, encoding) as second:
                second.report.dead_letters += first.report.dead_letters
                dead_letters = first.dead_letters.select("_row", *META)
                yield Staged(second.frame.unionByName(dead_letters, allowMissingColumns=True), second.report)

    @contextmanager
    def _kept(self, rows: DataFrame, task: Callable[[Plan], Task]) -> Iterator[Staged]:
        plan = self.plan()
        frame = rows.mapInArrow(task(plan), plan.ddl()).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            report = Report()
            for row in frame.where(F.col("_row") == REPORT).select("_rest").collect():
                report.add(row[0])
            yield Staged(frame, report)
        finally:
            frame.unpersist()

    # --- columns

    def _open(self) -> Columns:
        """Give the columns of the table; it is made when it is missing, and finished when a crash left it half done."""
        declared = _ONE_COLUMN.get(self._rules.contract) or dict(self._rules.declared)
        self._check_names(declared)
        meta = ", ".join(f"{name} {kind}" for name, kind in META.items())
        self._lake.create(
            self.table,
            TableKind.MIRROR,
            self.namespace,
            meta,
            properties={
                COLUMNS_PROPERTY: "{}",
                CONTRACT_PROPERTY: self._rules.contract.value,
                CHOICE_PROPERTY: self._rules.choice.text(),
            },
        )
        properties = self._lake.properties(self.table)
        self._check_contract(Contract(properties[CONTRACT_PROPERTY]))
        self._check_choice(properties.get(CHOICE_PROPERTY, ""))
        columns: Columns = json.loads(properties[COLUMNS_PROPERTY])
        self.columns = columns
        grown = self._evolved(declared, may_rewrite=False)
        self._finish(columns)
        if grown.changes:
            self._grow(grown)
        return self.columns

    def _check_names(self, declared: Columns) -> None:
        """Refuse declared columns that the format has no names for, before there is a table."""
        steps = (step.removesuffix("[]") for path, _ in leaves(declared) for step in path.split("."))
        bad = sorted({step for step in steps if not self._lake.column_name.fullmatch(step)})
        if bad:
            hint = "Rename them, or leave them out: their values are in _rest then."
            raise SettingsError(f"columns of {self.namespace} cannot be called {', '.join(bad)}", hint=hint)

    def _check_contract(self, known: Contract) -> None:
        """A table of whole documents has other columns than all others; `evolve` and `strict` share theirs."""
        wanted = self._rules.contract
        if known is not wanted and {known, wanted} & _ONE_COLUMN.keys():
            hint = "Keep the contract, or drop the mirror and run `tailrace warehouse rebuild`."
            raise SettingsError(f"the mirror of {self.namespace} was made with the contract {known}", hint=hint)
        if known is not wanted:
            self._lake.set_properties(self.table, {CONTRACT_PROPERTY: wanted.value})

    def _check_choice(self, known: str) -> None:
        """Rows that are there were made by another choice: they would not have what new ones have."""
        if known != self._rules.choice.text():
            hint = "Set warehouse.columns and warehouse.excluded back, or drop the mirror and run `warehouse rebuild`."
            raise SettingsError(
                f"the mirror of {self.namespace} was made with other columns: {known or 'all'}", hint=hint
            )

    def _evolution(self, report: Report) -> Evolution:
        """Decide what the columns become."""
        if not report.shape:
            return Evolution(self.columns, ())
        if self._is_closed:
            return self._closed_evolution(report)
        is_small = self._lake.rows(self.table) <= self._rules.rewrite_rows
        return self._evolved(report.shape, may_rewrite=is_small)

    def _evolved(self, shape: Columns, *, may_rewrite: bool) -> Evolution:
        limits = replace(
            self._format_limits, columns=self._rules.max_columns, levels=self._rules.max_levels, may_rewrite=may_rewrite
        )
        return evolve(self.columns, [shape], limits)

    @property
    def _is_closed(self) -> bool:
        """Whether the columns stay as they are."""
        return self._rules.has_chosen_columns or (self._rules.contract is Contract.STRICT and bool(self.columns))

    def _closed_evolution(self, report: Report) -> Evolution:
        """Take no column but the `_id`, which nobody has to declare."""
        wanted = {name: shape for name, shape in report.shape.items() if name == "_id" and name not in self.columns}
        stops = self._rules.contract is Contract.STRICT and not self._rules.dead_letters_drift
        if stops and report.shape.keys() > wanted.keys():
            fields = ", ".join(sorted(location for location in report.counts if location.split(" ")[0] not in wanted))
            raise SchemaDrifted(f"{self.namespace} has fields that its table does not take: {fields}")
        return self._evolved(wanted, may_rewrite=False)

    def _widen(self, evolution: Evolution) -> None:
        is_new = not self.columns
        if evolution.needs_rewrite:
            self._rewrite(evolution)
        else:
            self._grow(evolution)
        if is_new:
            return  # the first columns of a table are no drift
        for change in evolution.changes:
            field, how, column = described(change)
            _log.warning("column_changed", namespace=self.namespace, field=field, change=how, column=column)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._keep_drift([_as_drift(change, now) for change in evolution.changes])

    def _grow(self, evolution: Evolution) -> None:
        """Say first what the columns shall be, then make them: a crash in between is finished by the next start."""
        self._lake.set_properties(self.table, {COLUMNS_PROPERTY: json.dumps(evolution.columns)})
        self.columns = evolution.columns
        self._alter(evolution.changes)

    def _finish(self, columns: Columns) -> None:
        """Make the columns that are promised and missing; a table of an older version may lack one that all have."""
        fields = self._lake.table(self.table).schema.fields
        missing = META.keys() - {field.name for field in fields}
        self._alter([Change((name,), META[name]) for name in sorted(missing)])
        own = [field for field in fields if field.name not in META]
        present = {field.name: shape_of_type(field.dataType) for field in own}
        self._alter(evolve(present, [columns], replace(self._format_limits, may_rewrite=False)).changes)

    def _alter(self, changes: Sequence[Change]) -> None:
        """Add all new columns in one commit; each type that is widened is a commit of its own."""
        table = f"ALTER TABLE {self._lake.sql_name(self.table)}"
        added = [f"{quoted(*one.path)} {spark_type(one.shape)}" for one in changes if not one.is_promotion]
        if added:
            self._lake.spark.sql(f"{table} ADD COLUMNS ({', '.join(added)})")
        for one in changes:
            if one.is_promotion:
                self._lake.spark.sql(f"{table} ALTER COLUMN {quoted(*one.path)} TYPE {spark_type(one.shape)}")

    def _rewrite(self, evolution: Evolution) -> None:
        """Make all rows anew for columns that cannot be widened in place; one commit, and readers see no gap."""
        plan = replace(self.plan(), columns=evolution.columns)
        rows = self._lake.table(self.table)
        made = rows.select(*RECODED).mapInArrow(encoding(plan), plan.ddl()).where(F.col("_row") == ROW).drop("_row")
        self._replace(made, evolution.columns)

    def replace_by(self, other: Mirror) -> None:
        """Take all rows and columns of another mirror, in one commit."""
        self._replace(self._lake.table(other.table), other.columns)

    def _replace(self, rows: DataFrame, columns: Columns) -> None:
        self._lake.replace(self.table, rows, {COLUMNS_PROPERTY: json.dumps(columns)})
        self.columns = columns

    # --- drift

    def _misfits(self, report: Report) -> list[Drift]:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        locations = ((location.rpartition(" "), count) for location, count in report.counts.items())
        return [Drift(path, "rest", kind, "", count, now, now) for (path, _, kind), count in locations]

    def _keep_drift(self, found: list[Drift], also: dict[str, str] | None = None) -> None:
        known = read_drift(self._lake.properties(self.table).get(DRIFT_PROPERTY))
        merged = add_drift(known, found)
        self._lake.set_properties(self.table, {DRIFT_PROPERTY: write_drift(merged), **(also or {})})


def _with_variants(rows: DataFrame) -> DataFrame:
    """Make variants of the documents; one that cannot be one (two fields of one name, too large) stays in `_rest`."""
    document = F.try_parse_json("document")
    return rows.withColumn("_rest", F.when(document.isNull(), F.col("document"))).withColumn("document", document)


def _between(column: str, least: bytes, greatest: bytes) -> str:
    """Say in SQL that a key is inside a range: files whose keys are all outside are not even opened."""
    return f"{column} >= X'{least.hex()}' AND {column} <= X'{greatest.hex()}'"


def _other_than(name: Column, own: str) -> Column:
    """Give a name, or null when it is the mirror's own."""
    return F.when(name != own, name)


def _as_drift(change: Change, now: str) -> Drift:
    field, how, column = described(change)
    return Drift(field, how, shape_text(change.shape), column, 1, now, now)
