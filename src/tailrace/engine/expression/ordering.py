"""MongoDB's order over values of all types: `compare`, and keys to sort or to put into sets by it.

Types come first, in the order of `_RANKS`; all numbers are one type, and so are strings and symbols.
NaN is the smallest number and equal to itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cmp_to_key
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace.engine.expression.values import (
    MISSING,
    UNDEFINED,
    Binary,
    Code,
    CodeWithScope,
    Date,
    DbPointer,
    Document,
    Regex,
    Symbol,
    Value,
    utf8,
)
from tailrace.raw.decimals import to_decimal

_RANKS: dict[type, int] = {
    MinKey: -1, type(MISSING): 0, type(UNDEFINED): 0, type(None): 5,
    int: 10, Int64: 10, float: 10, Decimal128: 10, str: 15, Symbol: 15, Document: 20, list: 25,
    Binary: 30, ObjectId: 35, bool: 40, Date: 45, Timestamp: 47, Regex: 50, DbPointer: 55,
    Code: 60, CodeWithScope: 65, MaxKey: 127,
}  # fmt: skip


def rank(value: Value) -> int:
    """Give the place of a value's type in the order of types."""
    return _RANKS[type(value)]


def compare(left: Value, right: Value) -> int:
    """Give -1, 0 or 1: how two values of any types stand to each other."""
    rank_of_type = _RANKS[type(left)]
    other = _RANKS[type(right)]
    if rank_of_type != other:
        return -1 if rank_of_type < other else 1
    comparison = _COMPARISONS.get(rank_of_type)
    return comparison(left, right) if comparison is not None else 0


def equal(left: Value, right: Value) -> bool:
    """Say whether two values are the same to MongoDB: 1 and 1.0 are."""
    return compare(left, right) == 0


def _sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def is_nan(value: Value) -> bool:
    """Say whether a value is a number that is none."""
    if type(value) is float:
        return math.isnan(value)
    return type(value) is Decimal128 and bool(to_decimal(value).is_nan())


def _compare_numbers(left: Value, right: Value) -> int:
    if type(left) is Decimal128:
        left = to_decimal(left)
    if type(right) is Decimal128:
        right = to_decimal(right)
    if left != left or right != right:
        return _sign(left == left, right == right)
    return _sign(left, right)


def _string(value: Value) -> str:
    return value.text if type(value) is Symbol else value


def _compare_arrays(left: list[Value], right: list[Value]) -> int:
    for one, other in zip(left, right, strict=False):
        order = compare(one, other)
        if order:
            return order
    return _sign(len(left), len(right))


def compare_documents(left: Document, right: Document) -> int:
    """Compare field by field: first the types, then the names, then the values."""
    mine, others = list(left.items()), list(right.items())
    for (name, value), (other_name, other) in zip(mine, others, strict=False):
        order = _sign(rank(value), rank(other)) or _sign(name, other_name) or compare(value, other)
        if order:
            return order
    return _sign(len(mine), len(others))


def _by(key: Callable[[Any], Any]) -> Callable[[Value, Value], int]:
    return lambda left, right: _sign(key(left), key(right))


def _compare_code_with_scope(left: CodeWithScope, right: CodeWithScope) -> int:
    return _sign(left.source, right.source) or compare_documents(left.scope, right.scope)


_COMPARISONS: dict[int, Callable[[Any, Any], int]] = {
    10: _compare_numbers,
    15: _by(_string),
    20: compare_documents,
    25: _compare_arrays,
    30: _by(lambda value: (len(value.data), value.subtype, value.data)),
    35: _by(lambda value: value.binary),
    40: _sign,
    45: _by(lambda value: value.millis),
    47: _by(lambda value: (value.time, value.inc)),
    50: _by(lambda value: (value.pattern, value.options)),
    55: _by(lambda value: (len(utf8(value.namespace)), value.id.binary)),
    60: _by(lambda value: value.source),
    65: _compare_code_with_scope,
}

sort_key = cmp_to_key(compare)


class ValueSet:
    """A set of values that knows no difference between 1 and 1.0; keeps the first of equal ones."""

    def __init__(self, values: list[Value] | None = None) -> None:
        self._buckets: dict[Any, list[Value]] = {}
        self._size = 0
        for value in values or ():
            self.add(value)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, value: Value) -> bool:
        return any(equal(value, other) for other in self._buckets.get(_hash_key(value), ()))

    def add(self, value: Value) -> bool:
        """Put a value in; False when an equal one was there."""
        if value in self:
            return False
        self._buckets.setdefault(_hash_key(value), []).append(value)
        self._size += 1
        return True

    def in_order(self) -> list[Value]:
        """List the values in MongoDB's order."""
        values = [value for bucket in self._buckets.values() for value in bucket]
        return sorted(values, key=sort_key)


def _hash_key(value: Value) -> Any:
    """Give something hashable that equal values share; Python hashes equal numbers alike."""
    rank_of_type = rank(value)
    if rank_of_type == 10:
        number = to_decimal(value) if type(value) is Decimal128 else value
        return rank_of_type, number if number == number else None
    return (rank_of_type, _string(value)) if rank_of_type == 15 else rank_of_type
