"""What tasks do for a mirror: the events of each document folded into its newest state, and that put into columns.

The rows of a task are of three sorts (`_row`): a document's new state, a letter (an event that cannot be applied, or a
document that was refused), and one report per task with what the driver has to know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from tailrace.errors import EventUnconvertible
from tailrace.raw import extended_json
from tailrace.spark.failures import task
from tailrace.warehouse.columns.choice import WHOLE, Choice
from tailrace.warehouse.columns.encoding import Encoder
from tailrace.warehouse.columns.evolution import META
from tailrace.warehouse.columns.shapes import COLUMN_TYPES, KINDS, Columns, Shape, leaves, merged_documents
from tailrace.warehouse.mirror.fast_fold import FastFold
from tailrace.warehouse.mirror.folding import Folded, KeyEvent, fold

EVENT_COLUMNS: Final = ("_key", "cluster_time", "token", "op", "raw", "_told_as")
"""What a task needs of an event; for a row of the mirror, `raw` is the document."""
EVENTS: Final = pa.schema(
    zip(
        EVENT_COLUMNS,
        (pa.binary(), pa.int64(), pa.string(), pa.string(), pa.binary(), pa.string()),
        strict=True,
    )
)
ROW, DEAD_LETTER, REPORT = "row", "letter", "report"
JSON_COLUMNS: Final[Columns] = {"_id": "string", "document": "string"}
"""The columns of the contract `json`."""
VARIANT_COLUMNS: Final[Columns] = {"_id": "string", "document": "variant"}
"""Those of the contract `variant`; tasks make JSON for it, which Spark makes a variant of."""
_ROWS_PER_BATCH: Final = 5_000
_MOST_PATHS: Final = 1_000
_ARROW: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "decimal(38,18)": pa.decimal128(38, 18),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}
Rows = Iterable[pa.RecordBatch]
Task = Callable[[Rows], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the documents of one collection become rows."""

    columns: Columns
    as_json: bool = False
    refuses: bool = False
    """Whether a document that does not fit becomes a letter (the contract `strict`)."""
    marks: bool = False
    """Whether rows of deleted documents stay, and need their `_id`."""
    choice: Choice = WHOLE

    def ddl(self) -> str:
        """The columns of the rows that tasks give, for Spark."""
        own = [f"`{name}` {spark_type(shape)}" for name, shape in self.columns.items()]
        return ", ".join(["_row string", *(f"{name} {kind}" for name, kind in META.items()), *own])

    def arrow(self) -> pa.Schema:
        """The same, for Arrow."""
        meta = [(name, _ARROW[kind]) for name, kind in META.items()]
        own = [(name, _arrow_type(shape)) for name, shape in self.columns.items()]
        return pa.schema([("_row", pa.string()), *meta, *own])


@dataclass(slots=True)
class Report:
    """What a task tells the driver."""

    rows: int = 0
    deleted: int = 0
    """Rows of documents that are gone."""
    refused: int = 0
    """Rows of documents that a strict table did not take."""
    dead_letters: int = 0
    least: bytes | None = None
    greatest: bytes | None = None
    shape: dict[str, Shape] = field(default_factory=dict)
    """What documents had that is in no column."""
    counts: dict[str, int] = field(default_factory=dict)
    """How often, by `path kind`."""

    def saw(self, key: bytes) -> None:
        """Count a row."""
        self.rows += 1
        self.least = key if self.least is None else min(self.least, key)
        self.greatest = key if self.greatest is None else max(self.greatest, key)

    def saw_all(self, keys: pa.ChunkedArray, deleted: int) -> None:
        """Count rows that are all taken."""
        ends = pc.min_max(keys).as_py()
        self.saw(ends["min"])
        self.saw(ends["max"])
        self.rows += len(keys) - 2
        self.deleted += deleted

    def drifted(self, drift: dict[str, Shape]) -> None:
        """Count what did not fit."""
        self.shape = merged_documents(self.shape, drift)
        for path, kind in leaves(drift):
            location = f"{path} {kind}"
            if location in self.counts or len(self.counts) < _MOST_PATHS:
                self.counts[location] = self.counts.get(location, 0) + 1

    def to_json(self) -> str:
        """Write it into a row."""
        ends = [None if key is None else key.hex() for key in (self.least, self.greatest)]
        numbers = self.rows, self.deleted, self.refused, self.dead_letters
        return orjson.dumps([*numbers, *ends, self.shape, self.counts]).decode()

    def add(self, text: str) -> None:
        """Take over what another task tells."""
        rows, deleted, refused, dead_letters, least, greatest, shape, counts = orjson.loads(text)
        keys = [bytes.fromhex(key) for key in (least, greatest) if key is not None]
        for key in keys:
            self.saw(key)
        self.rows += rows - len(keys)
        self.deleted += deleted
        self.refused += refused
        self.dead_letters += dead_letters
        self.shape = merged_documents(self.shape, shape)
        for location, count in counts.items():
            self.counts[location] = self.counts.get(location, 0) + count


def folding(plan: Plan) -> Task:
    """Make the task that folds all events of its keys."""

    def run(batches: Rows) -> Iterator[pa.RecordBatch]:
        with task():
            stage = _Stage(plan)
            yield from stage.take(pa.Table.from_batches([_as_events(batch) for batch in batches], EVENTS))
            yield stage.last()

    return run


def _as_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give a batch with the one schema that all have: whether a column may have nulls depends on where it is from."""
    return pa.RecordBatch.from_arrays([batch.column(one.name).cast(one.type) for one in EVENTS], schema=EVENTS)


def _by_key(events: pa.Table) -> dict[bytes, list[KeyEvent]]:
    by_key: dict[bytes, list[KeyEvent]] = defaultdict(list)
    for key, *event in _rows(events, EVENT_COLUMNS):
        by_key[key].append(KeyEvent(*event))
    return by_key


def encoding(plan: Plan) -> Task:
    """Make the task that puts documents that were folded before into other columns."""

    def run(batches: Rows) -> Iterator[pa.RecordBatch]:
        with task():
            stage = _Stage(plan)
            for batch in batches:
                for key, version, token, is_deleted, refused, document, told_as in _rows(batch, RECODED):
                    made = Folded(version, token, document, is_deleted, is_changed=True, told_as=told_as)
                    stage.add(key, made, refused)
                    yield from stage.full()
            yield stage.last()

    return run


RECODED: Final = ("_key", "_version", "_token", "_is_deleted", "_refused", "_bson", "_told_as")
"""What is needed of a row to make it anew."""


def _rows(batch: pa.RecordBatch | pa.Table, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


class _Stage:
    """Collects rows into record batches."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._encoder = Encoder(plan.columns)
        self._schema = plan.arrow()
        self._rows: list[dict[str, Any]] = []
        self._report = Report()

    def take(self, events: pa.Table) -> Iterator[pa.RecordBatch]:
        """Fold all events of some documents: most by the kernel, and one by one what it leaves."""
        made, left = _fast_fold(self._plan, self._schema).fold(events)
        if made.num_rows:
            self._report.saw_all(made["_key"], pc.sum(made["_is_deleted"]).as_py())
            row = pa.repeat(pa.scalar(ROW), made.num_rows)
            yield from made.set_column(0, self._schema.field(0), row).to_batches(_ROWS_PER_BATCH)
        for key, records in _by_key(left).items():
            self.add(key, fold(records))
            yield from self.full()

    def add(self, key: bytes, folded: Folded, refused: str | None = None) -> None:
        for event, cause in folded.unknown:
            self._dead_letter(key, event.version, event.token, cause, event.event)
        if not folded.is_changed:
            return
        document = folded.document
        if document is not None:
            document = self._plan.choice.without_excluded(document)
        row: dict[str, Any] = {
            "_row": ROW,
            "_key": key,
            "_version": folded.version,
            "_token": folded.token,
            "_is_deleted": folded.is_deleted,
            "_refused": refused,
            "_bson": document,
            "_told_as": folded.told_as,
        }
        if document is not None:
            self._put(row, key, document)
        elif self._plan.marks and folded.document_key is not None:
            self._put(row, key, folded.document_key, is_whole=False)
        self._report.saw(key)
        self._report.deleted += folded.is_deleted
        self._report.refused += row["_refused"] is not None
        self._rows.append(row)

    def full(self) -> Iterator[pa.RecordBatch]:
        if len(self._rows) >= _ROWS_PER_BATCH:
            yield self._batch()

    def last(self) -> pa.RecordBatch:
        self._rows.append({"_row": REPORT, "_rest": self._report.to_json()})
        return self._batch()

    def _put(self, row: dict[str, Any], key: bytes, data: bytes, *, is_whole: bool = True) -> None:
        try:
            self._put_decoded(row, key, data, extended_json.decode(data), is_whole=is_whole)
        except EventUnconvertible as error:
            self._refuse(row, key, f"{error.code}: {error.message}", data)

    def _put_decoded(
        self, row: dict[str, Any], key: bytes, data: bytes, document: dict[str, Any], *, is_whole: bool
    ) -> None:
        if self._plan.as_json:
            row["_id"] = _id_text(document, data)
            row["document"] = extended_json.relaxed(document, data).decode() if is_whole else None
            return
        encoded = self._plan.choice.encode(document, self._encoder)
        if encoded.drift is not None and is_whole:
            self._report.drifted(encoded.drift)
            if self._plan.refuses:
                fields = ", ".join(f"{path} ({kind})" for path, kind in leaves(encoded.drift))
                self._refuse(row, key, f"schema-drift: {fields}", data)
                return
        if encoded.rest is not None and is_whole:
            row["_rest"] = extended_json.relaxed(encoded.rest, data).decode()
        row.update(encoded.values)

    def _refuse(self, row: dict[str, Any], key: bytes, cause: str, data: bytes) -> None:
        """Make a letter of a document that cannot be a row; a row that is there of it says since when it is old."""
        row["_refused"], row["_bson"] = row["_token"], None
        self._dead_letter(key, row["_version"], row["_token"], cause, data)

    def _dead_letter(self, key: bytes, version: int, token: str, cause: str, data: bytes) -> None:
        self._report.dead_letters += 1
        self._rows.append(
            {"_row": DEAD_LETTER, "_key": key, "_version": version, "_token": token, "_rest": cause, "_bson": data}
        )

    def _batch(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, []
        arrays = [
            pa.array([row.get(name) for row in rows], kind)
            for name, kind in zip(self._schema.names, self._schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _fast_fold(plan: Plan, schema: pa.Schema) -> FastFold:
    """Give the fast path; documents of which the plan takes no columns, or not all, have none."""
    columns = {} if plan.as_json or plan.choice else plan.columns
    return FastFold(columns, schema, takes_deletes=not plan.marks)


def _id_text(document: dict[str, Any], data: bytes) -> str:
    return extended_json.relaxed(document.get("_id"), data).decode()


def spark_type(shape: Shape) -> str:
    """Give the type of a column in Spark's SQL."""
    if isinstance(shape, dict):
        return f"struct<{', '.join(f'`{name}`: {spark_type(inner)}' for name, inner in shape.items())}>"
    if isinstance(shape, list):
        return f"array<{spark_type(shape[0])}>"
    assert shape is not None
    return COLUMN_TYPES[shape]


def _arrow_type(shape: Shape) -> pa.DataType:
    if isinstance(shape, dict):
        return pa.struct([(name, _arrow_type(inner)) for name, inner in shape.items()])
    if isinstance(shape, list):
        return pa.list_(_arrow_type(shape[0]))
    assert shape is not None
    return _ARROW[KINDS[shape]]


def shape_of_type(kind: types.DataType) -> Shape:
    """Give the shape that a column of this type has for sure; what strings stand for is not in their type."""
    if isinstance(kind, types.StructType):
        return {field.name: shape_of_type(field.dataType) for field in kind.fields}
    if isinstance(kind, types.ArrayType):
        return [shape_of_type(kind.elementType)]
    return next((name for name, text in KINDS.items() if text == kind.simpleString()), "string")
