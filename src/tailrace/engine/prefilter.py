"""A prefilter for oplog entries: what a user's filter says of their bytes, before anything is made of them.

A filter such as `{"fullDocument.customer": 7}` can only pass an event whose entry has an element called `customer`
with that value, in one of the ways BSON can write it, or an array that may contain it. Looking for those bytes
is many times faster than making the event and running the filter. It is a necessary condition, never a
sufficient one: an entry that has the bytes still becomes an event, and that goes through the filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson.int64 import Int64
from bson.objectid import ObjectId

from tailrace import raw

_ROOTS: Final = ("fullDocument", "documentKey")
"""Fields of an event whose content stands in the entry as it stands in the event."""
_ORDERING: Final = frozenset({"$gt", "$gte", "$lt", "$lte"})


@dataclass(frozen=True, slots=True)
class Prefilter:
    """An element that an entry must have, for its event to pass."""

    name: bytes
    values: tuple[tuple[int, bytes], ...] = ()
    """The type and the first bytes of the values that will do; none: any value will."""


def prefilter_of(stages: Sequence[Mapping[str, Any]]) -> Prefilter | None:
    """Make a prefilter of the first `$match`; None when it has no condition that can be one."""
    query = stages[0].get("$match") if stages else None
    if not isinstance(query, Mapping):
        return None
    for path, value in query.items():
        prefilter = _of_condition(path, value)
        if prefilter is not None:
            return prefilter
    return None


def _of_condition(path: str, value: Any) -> Prefilter | None:
    root, _, rest = path.partition(".")
    name = rest.rpartition(".")[2]
    # A number may be a position in an array, whose elements have no names to look for.
    if root not in _ROOTS or not name or name.isdigit():
        return None
    if not isinstance(value, Mapping):
        return _of_values(name.encode(), [value])
    for operator, operand in value.items():
        if operator == "$eq":
            return _of_values(name.encode(), [operand])
        if operator == "$in" and isinstance(operand, list):
            return _of_values(name.encode(), operand)
        if operator in _ORDERING and _ways_to_write(operand) is not None:
            return Prefilter(name.encode())  # a field that is not there is neither less nor greater
    return None


def _of_values(name: bytes, values: list[Any]) -> Prefilter | None:
    """Look for a name, and behind it for one of some values, or for an array that may have it."""
    ways: list[tuple[int, bytes]] = [(raw.ARRAY, b"")]
    for value in values:
        listed = _ways_to_write(value)
        if listed is None:
            return None
        ways += listed
    return Prefilter(name, tuple(ways))


def _ways_to_write(value: Any) -> list[tuple[int, bytes]] | None:
    """Give every type and bytes of elements that equal a value; None when they cannot be listed."""
    if isinstance(value, bool):
        return [(raw.BOOL, raw.boolean(value))]
    if isinstance(value, (int, float)):
        return list(_numbers(value)) if math.isfinite(value) and abs(value) < 2**53 else None
    if isinstance(value, str):
        return [(raw.STRING, raw.string(value)), (raw.SYMBOL, raw.string(value))]
    if isinstance(value, (ObjectId, datetime)):
        encoded = raw.from_python(value)
        return [(encoded.kind, encoded.data)]
    return None


def _numbers(value: float | Int64) -> Iterator[tuple[int, bytes]]:
    """Give the ways to write a number; decimals have too many, so any decimal will do."""
    yield raw.DECIMAL128, b""
    yield raw.DOUBLE, raw.double(float(value))
    if value == 0:
        yield raw.DOUBLE, raw.double(-float(value) if math.copysign(1, value) > 0 else 0.0)
    if value == int(value):
        yield raw.INT64, raw.int64(int(value))
        if -(2**31) <= value < 2**31:
            yield raw.INT32, raw.int32(int(value))
