"""Fingerprints of a table's columns, the same for whoever read the rows: they depend on values, not on order or on
the reader's own types of Arrow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_SIZE = 1 << 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fingerprints(batches: Iterable[pa.RecordBatch]) -> dict[str, str]:
    """Give for every column a sum over its values, each with the key of its row, and the number of rows."""
    return _summed(
        {name: _plain(column).to_pylist() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        for batch in batches
    )


def fingerprints_of_rows(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    """The same of rows as Python has them."""
    return _summed([dict(zip(names, zip(*rows, strict=True), strict=True))] if rows else [])


def _summed(chunks: Iterable[Mapping[str, Sequence[Any]]]) -> dict[str, str]:
    sums: dict[str, int] = {}
    rows = 0
    for columns in chunks:
        keys = [_text(key) for key in columns["token" if "token" in columns else "_key"]]
        rows += len(keys)
        for name, values in columns.items():
            sums[name] = (sums.get(name, 0) + sum(map(_digest, keys, map(_text, values)))) % _SIZE
    return {"rows": str(rows), **{name: f"{sums[name]:032x}" for name in sorted(sums)}}


def _digest(key: str, value: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key}\0{value}".encode(), digest_size=16).digest(), "big")


def _plain(column: Any) -> Any:
    """Give times as their microseconds, which Python could not all hold, and texts and lists as the usual ones."""
    return column.cast(_plain_type(column.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind):
        assert kind.unit == "us", kind
        return pa.int64()
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    return kind


def _text(value: Any) -> str:
    return "".join(_parts(value))


def _parts(value: Any) -> Iterator[str]:
    match value:
        case None:
            yield "null"
        case dict():
            for name in sorted(value):
                yield from (name, "{", *_parts(value[name]), "}")
        case list():
            for item in value:
                yield from ("[", *_parts(item), "]")
            yield f"{len(value)} items"
        case datetime():
            yield f"int {(value - _EPOCH) // timedelta(microseconds=1)!r}"
        case bytes():
            yield f"bytes {value.hex()}"
        case float():
            yield "nan" if math.isnan(value) else f"double {value!r}"
        case Decimal():
            yield f"decimal {value.normalize() if value else 0}"
        case _:
            yield f"{type(value).__name__} {value!r}"
