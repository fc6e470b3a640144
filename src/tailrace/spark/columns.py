"""Change events as Arrow: only the columns that are asked for are made.

The compiled kernel makes those of the envelope straight from the BSON bytes, for a batch in one call; Python makes all
others, and whatever the kernel declines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace import kernel, raw
from tailrace.errors import EventUnconvertible, SettingsError
from tailrace.event import ChangeEvent
from tailrace.fold import id_of_value
from tailrace.raw import extended_json
from tailrace.raw.cluster_time import ClusterTime
from tailrace.spark.typed import Mismatches, converter

ENVELOPE: Final = types.StructType(
    [
        types.StructField("token", types.StringType(), nullable=False),
        types.StructField("cluster_time", types.TimestampType(), nullable=False),
        types.StructField("wall_time", types.TimestampType()),
        types.StructField("op", types.StringType(), nullable=False),
        types.StructField("db", types.StringType()),
        types.StructField("coll", types.StringType()),
        types.StructField("document_key", types.StringType()),
        types.StructField("full_document", types.StringType()),
        types.StructField("full_document_before", types.StringType()),
        types.StructField("update_description", types.StringType()),
        types.StructField("raw", types.BinaryType()),
    ]
)
"""The columns without a declared schema. Order events by `token`: cluster times are shared inside a transaction."""
MISMATCHES: Final = "_mismatches"
"""A declared string column of this name gets the paths of the values that did not fit, as a JSON list."""

KEY: Final = "_key"
"""A declared binary column of this name gets the `_id` as bytes that are equal for equal `_id`s and sort like them."""

_DOCUMENTS: Final = {
    "document_key": "documentKey",
    "full_document": "fullDocument",
    "full_document_before": "fullDocumentBeforeChange",
    "update_description": "updateDescription",
}
_has_cluster_time = re.compile("..[0-9A-Fa-f]{16}").match


class _Event:
    """One event while its columns are made: each part is found or decoded at most once."""

    __slots__ = ("_decoded", "_view", "bytes", "fields", "mismatches")

    def __init__(self, event: bytes, fields: Mapping[str, Any] | None) -> None:
        self.bytes = event
        self.fields: Mapping[str, Any] = fields or {}
        """What is decoded already; a part that is missing here is looked for in the bytes."""
        self.mismatches: Mismatches = []
        self._view: ChangeEvent | None = None
        self._decoded: dict[str, Any] | None = None

    @property
    def view(self) -> ChangeEvent:
        if self._view is None:
            self._view = ChangeEvent(self.bytes)
        return self._view

    def part(self, name: str) -> bytes | None:
        return self.view.document(name.encode())

    def knows(self, name: str) -> bool:
        """Whether a part is decoded already, or known to be missing.

        One that looks like a reference has become one in an event, and is a document for itself: that is not known.
        """
        return type(self.fields.get(name)) is dict or (bool(self.fields) and name not in self.fields)

    def decoded(self, name: str) -> Any:
        if self.knows(name):
            return self.fields.get(name)
        if self._decoded is None:
            self._decoded = {}
        if name not in self._decoded:
            part = self.part(name)
            self._decoded[name] = None if part is None else extended_json.decode(part)
        return self._decoded[name]


Buffers = tuple[bytes | None, bytes | None, bytes]
"""What the kernel makes of a column: which values are there, where each ends, and their data."""
Value = Callable[[_Event], Any]
Column = Callable[[Sequence[_Event]], Sequence[Any]]


class EventColumns:
    """Makes record batches of one schema out of events."""

    def __init__(self, schema: types.StructType, *, fail_fast: bool = False) -> None:
        self._arrow = to_arrow_schema(schema)
        self._columns = [_column(field) for field in schema.fields]
        # `_mismatches` is made last, when all other columns have been tried.
        self._order = sorted(range(len(self._columns)), key=lambda number: schema.fields[number].name == MISMATCHES)
        self._fail_fast = fail_fast
        self._compiled = _compiled_columns(schema)

    def batch(
        self, events: Sequence[bytes], fields: Sequence[Mapping[str, Any] | None] | None = None
    ) -> pa.RecordBatch:
        """Give the rows of these events; `fields` are those of them that are decoded already."""
        known = fields or [None] * len(events)
        if self._compiled is None:
            return self._reference(events, known)
        columns, declined = self._compiled.batch(events)
        made = self._made(columns, len(events) - len(declined))
        if not declined:
            return made
        rest = self._reference([events[index] for index in declined], [known[index] for index in declined])
        return in_order(made, rest, len(events), declined, declined)

    def unread(self, events: pa.Array) -> tuple[pa.RecordBatch, list[int]]:
        """Give the rows of events that nobody has looked at yet, and the places of those that are to be read first."""
        if self._compiled is None:
            return self.none(), list(range(len(events)))
        columns, declined = self._compiled.unread(*binary_buffers(events.cast(pa.binary())))
        return self._made(columns, len(events) - len(declined)), declined

    def none(self) -> pa.RecordBatch:
        """Give no rows."""
        return pa.RecordBatch.from_pylist([], schema=self._arrow)

    def _made(self, columns: Sequence[Buffers], rows: int) -> pa.RecordBatch:
        arrays = [array_of(kind, rows, buffers) for kind, buffers in zip(self._arrow.types, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _reference(self, events: Sequence[bytes], fields: Sequence[Mapping[str, Any] | None]) -> pa.RecordBatch:
        made = [_Event(event, each) for event, each in zip(events, fields, strict=True)]
        arrays: list[Any] = [None] * len(self._columns)
        for number in self._order:
            arrays[number] = pa.array(self._columns[number](made), self._arrow.types[number])
        if self._fail_fast:
            _check_fit(made)
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _compiled_columns(schema: types.StructType) -> Any | None:
    """Give what makes all columns of a schema in the kernel; None where Python makes one of them."""
    module = kernel.module()
    if module is None:
        return None
    try:
        return module.EventColumns([f"{field.name}:{field.dataType.simpleString()}" for field in schema.fields])
    except module.KernelError:
        return None


def array_of(kind: pa.DataType, rows: int, buffers: Buffers, below: Sequence[pa.Array] = ()) -> pa.Array:
    """Make an array of the kernel's buffers, which are not copied; numbers have no offsets, documents no data."""
    valid, offsets, data = buffers
    kept = [valid, *(() if offsets is None else (offsets,)), *(() if below else (data,))]
    made = [None if each is None else pa.py_buffer(each) for each in kept]
    return pa.Array.from_buffers(kind, rows, made, children=list(below))


def binary_buffers(array: pa.Array) -> tuple[bytes, bytes]:
    """Give the data and the offsets of an array of binaries, as the kernel takes them."""
    _, offsets, data = array.buffers()
    begin, size = 4 * array.offset, 4 * (len(array) + 1)
    return b"" if data is None else data.to_pybytes(), offsets.slice(begin, size).to_pybytes() if len(array) else b""


def in_order(
    made: pa.RecordBatch, rest: pa.RecordBatch, count: int, declined: Sequence[int], places: Sequence[int]
) -> pa.RecordBatch:
    """Put rows that the reference made, which stood at some places, between those that the kernel did not decline."""
    if not made.num_rows:
        return rest
    standing = np.concatenate((np.delete(np.arange(count), declined), places))
    return pa.concat_batches([made, rest]).take(pa.array(np.argsort(standing)))


def _check_fit(events: Sequence[_Event]) -> None:
    for event in events:
        if event.mismatches:
            raise EventUnconvertible(
                f"{', '.join(event.mismatches)} of event {event.view.token_text.decode()} does not fit its column",
                hint="Declare a type that takes the value (string takes all), or use the mode permissive.",
            )


def _column(field: types.StructField) -> Column:
    kind = field.dataType
    if field.name in _DOCUMENTS:
        return _document_column(field.name, kind)
    fixed = _FIXED.get((field.name, type(kind)))
    if fixed is not None:
        return _each(fixed)
    if field.name in ENVELOPE.names:
        raise SettingsError(f"column {field.name} cannot be {kind.simpleString()}", hint="See docs/spark.md.")
    return _each(_field_value(field))


def _each(value: Value) -> Column:
    return lambda events: [value(event) for event in events]


def _document_column(name: str, kind: types.DataType) -> Column:
    part = _DOCUMENTS[name]
    if isinstance(kind, types.BinaryType):
        return _each(lambda event: event.part(part))
    if isinstance(kind, types.StringType):
        return _each(lambda event: _text(event, part))
    convert = converter(kind)

    def value(event: _Event) -> Any:
        return convert(_decoded(event, part, name), name, event.mismatches)

    return _each(value)


def _decoded(event: _Event, part: str, column: str) -> Any:
    """Decode a part; text that is no UTF-8, which a server does store, fits no column but `raw`."""
    try:
        return event.decoded(part)
    except EventUnconvertible:
        event.mismatches.append(column)
        return None


def _field_value(field: types.StructField) -> Value:
    """Give the value of a field of the document; what a delete has is in its documentKey."""
    convert, name = converter(field.dataType), field.name

    def value(event: _Event) -> Any:
        for part in ("fullDocument", "documentKey"):
            document = _decoded(event, part, name)
            if document is not None and name in document:
                return convert(document[name], name, event.mismatches)
        return None

    return value


def _text(event: _Event, name: str) -> bytes | None:
    """Write a part as relaxed Extended JSON."""
    try:
        if event.knows(name):
            document = event.fields.get(name)
            return None if document is None else extended_json.relaxed(document, event.bytes)
        part = event.part(name)
        return None if part is None else extended_json.relaxed_document(part)
    except EventUnconvertible:
        event.mismatches.append(name)
        return None


def _cluster_time(event: _Event) -> ClusterTime:
    known = event.fields.get("clusterTime")
    if type(known) is Timestamp:
        return ClusterTime.from_timestamp(known)
    return event.view.cluster_time


def _wall_time(event: _Event) -> int | None:
    if event.fields and "wallTime" not in event.fields:
        return None
    wall_time = event.view.wall_time
    return None if wall_time is None else wall_time * 1_000


def _token(event: _Event) -> str | bytes:
    """Give the token; its cluster time is at a fixed place, and what has none there is no token."""
    known = event.fields.get("_id")
    if type(known) is dict and type(text := known.get("_data")) is str and _has_cluster_time(text):
        return text
    return event.view.token_text


def _operation(event: _Event) -> str:
    known = event.fields.get("operationType")
    if type(known) is str:
        return known
    return event.view.required_operation_type


def _namespace(event: _Event) -> tuple[str | None, str | None]:
    namespace = event.fields.get("ns")
    if type(namespace) is dict:
        return namespace.get("db"), namespace.get("coll")
    return event.view.database_and_collection


def _key(event: _Event) -> bytes | None:
    known = event.fields.get("documentKey")
    if type(known) is dict and type(id_ := known.get("_id")) is ObjectId:
        return id_of_value(raw.Value(raw.OBJECT_ID, id_.binary))
    part = event.part("documentKey")
    found = None if part is None else raw.field(part, b"_id")
    return None if found is None else id_of_value(found)


def _mismatches(event: _Event) -> str | None:
    return orjson.dumps(event.mismatches).decode() if event.mismatches else None


_FIXED: Mapping[tuple[str, type[types.DataType]], Value] = {
    ("token", types.StringType): _token,
    ("cluster_time", types.TimestampType): lambda event: _cluster_time(event).seconds * 1_000_000,
    ("cluster_time", types.LongType): _cluster_time,  # exact, and good as a version
    ("wall_time", types.TimestampType): _wall_time,
    ("op", types.StringType): _operation,
    ("db", types.StringType): lambda event: _namespace(event)[0],
    ("coll", types.StringType): lambda event: _namespace(event)[1],
    ("raw", types.BinaryType): lambda event: event.bytes,
    (KEY, types.BinaryType): _key,
    (MISMATCHES, types.StringType): _mismatches,
}
