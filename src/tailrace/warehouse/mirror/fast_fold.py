"""The fast path of a mirror's fold: events that say alone what becomes of their document, a whole batch at a time.

The newest event of a document that brings it, or deletes it, leaves nothing of what was before (`tailrace.fold`). The
kernel puts such documents into columns. Everything else is left to the slow path: documents with two events of one
cluster time, updates that bring no document, and documents with a value that fits no column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import kernel
from tailrace.fold import BASE
from tailrace.spark.columns import Buffers, array_of, binary_buffers
from tailrace.warehouse.columns.shapes import Columns, Shape

_COPIED: Final = {"_key": "_key", "_version": "cluster_time", "_token": "token", "_told_as": "_told_as"}
"""What a row has of its newest event as it is."""


class FastFold:
    """Folds what it can of the events of one collection."""

    def __init__(self, columns: Columns, schema: pa.Schema, *, takes_deletes: bool) -> None:
        """`columns` are those of the documents, none where a row is more than that, `schema` is that of the rows.

        `takes_deletes` says that a row of a deleted document has nothing of it.
        """
        self._schema = schema
        self._takes_deletes = takes_deletes
        self._columns = list(columns)
        self._compiled = _compiled(columns)

    def fold(self, events: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Give the rows of some documents, and the events of all others; `_row` is left empty."""
        if self._compiled is None or not events.num_rows:
            return self._schema.empty_table(), events
        events = events.combine_chunks()
        documents = _chunk(events["_key"]).dictionary_encode().indices.to_numpy()
        newest, is_left = _newest(documents, events["cluster_time"].to_numpy())
        operations = events["op"]
        is_left[documents[_flags(pc.equal(operations, BASE))]] = True
        is_delete = _flags(pc.equal(operations, "delete"))[newest]
        if not self._takes_deletes:
            is_left |= is_delete
        rows, declined = self._with_documents(events, newest[~is_left & ~is_delete])
        is_left[documents[declined]] = True
        deleted = self._rows(events, newest[~is_left & is_delete], {}, is_deleted=True)
        left = events.filter(pa.array(is_left[documents])) if is_left.any() else events.slice(0, 0)
        return pa.concat_tables([rows, deleted]), left

    def _with_documents(self, events: pa.Table, numbers: Any) -> tuple[pa.Table, Any]:
        """Give the rows of events that bring their documents, and which events the kernel has declined."""
        assert self._compiled is not None
        given = np.ascontiguousarray(numbers, np.int64)
        documents, columns, declined = self._compiled.batch(*binary_buffers(_chunk(events["raw"])), given.tobytes())
        made = iter(columns)
        values = {name: _nested(self._schema.field(name).type, made) for name in self._columns}
        taken = np.delete(given, declined)
        values["_bson"] = array_of(pa.binary(), len(taken), documents)
        return self._rows(events, taken, values, is_deleted=False), given[declined]

    def _rows(self, events: pa.Table, numbers: Any, values: dict[str, pa.Array], *, is_deleted: bool) -> pa.Table:
        values["_is_deleted"] = pa.repeat(pa.scalar(is_deleted), len(numbers))
        for name, column in _COPIED.items():
            values[name] = events[column].take(pa.array(numbers))
        arrays = [
            values[field.name] if field.name in values else pa.nulls(len(numbers), field.type) for field in self._schema
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _newest(documents: Any, versions: Any) -> tuple[Any, Any]:
    """Give the newest event of each document, which are numbered, and whether another one has its cluster time."""
    order = np.lexsort((versions, documents))
    ordered, times = documents[order], versions[order]
    is_same = ordered[1:] == ordered[:-1]
    is_last = np.append(~is_same, True)
    is_tied = np.append(False, is_same & (times[1:] == times[:-1]))
    return order[is_last], is_tied[is_last]


def _compiled(columns: Columns) -> Any | None:
    """Give what makes the columns in the kernel; None where Python makes one of them."""
    module = kernel.module()
    if module is None or not columns:
        return None
    try:
        return module.DocumentColumns([_described(name, shape) for name, shape in columns.items()])
    except module.KernelError:
        return None


def _described(name: str, shape: Shape) -> tuple[str, str, list[Any]]:
    if isinstance(shape, dict):
        return name, "document", [_described(inner, one) for inner, one in shape.items()]
    if isinstance(shape, list):
        return name, "array", [_described("", shape[0])]
    return name, shape or "", []


def _nested(kind: pa.DataType, made: Iterator[tuple[int, Buffers]]) -> pa.Array:
    """Make an array of what the kernel gives: every column before those below it."""
    rows, buffers = next(made)
    if pa.types.is_struct(kind):
        below = [_nested(field.type, made) for field in kind]
    elif pa.types.is_list(kind):
        below = [_nested(kind.value_type, made)]
    else:
        below = []
    return array_of(kind, rows, buffers, below)


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    """Give the only chunk of a column of a table whose chunks are combined."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _flags(column: pa.ChunkedArray) -> Any:
    return column.to_numpy()
