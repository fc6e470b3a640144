"""BSON values into columns of declared types.

A value that does not fit becomes null and its path is remembered: the caller puts the paths into the column
`_mismatches` or fails. A string column takes everything: an ObjectId as its digits, the rest as Extended JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pyspark.sql import types

from tailrace.errors import EventUnconvertible, SettingsError
from tailrace.raw import extended_json
from tailrace.raw.decimals import to_decimal

Mismatches = list[str]
Convert = Callable[[Any, str, Mismatches], Any]

_EPOCH = date(1970, 1, 1)
_FARTHEST_MS = (2**63 - 1) // 1_000
"""A column counts microseconds in 64 bits; BSON counts milliseconds."""
_BITS: Mapping[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}


def converter(kind: types.DataType) -> Convert:
    """Give the function that turns decoded BSON values into what Arrow takes for this type."""
    if isinstance(kind, types.StructType):
        return _struct(kind)
    if isinstance(kind, types.ArrayType):
        return _array(kind)
    if isinstance(kind, types.MapType):
        return _map(kind)
    if type(kind) in _BITS:
        return _checked(_integer(_BITS[type(kind)]))
    if isinstance(kind, types.DecimalType):
        return _checked(_decimal(kind))
    scalar = _SCALARS.get(type(kind))
    if scalar is None:
        raise SettingsError(f"no BSON value fits a column of type {kind.simpleString()}", hint="Declare another type.")
    return _checked(scalar)


class _Misfit(Exception):
    """The value does not fit."""


def _checked(scalar: Callable[[Any], Any]) -> Convert:
    def convert(value: Any, path: str, mismatches: Mismatches) -> Any:
        if value is None:
            return None
        try:
            return scalar(value)
        except (_Misfit, EventUnconvertible, ArithmeticError, ValueError):
            mismatches.append(path)
            return None

    return convert


def _struct(kind: types.StructType) -> Convert:
    fields = [(field.name, converter(field.dataType)) for field in kind.fields]

    def convert(value: Any, path: str, mismatches: Mismatches) -> Any:
        if not isinstance(value, Mapping):
            return _misfit(value, path, mismatches)
        return {name: inner(value.get(name), f"{path}.{name}", mismatches) for name, inner in fields}

    return convert


def _array(kind: types.ArrayType) -> Convert:
    element = converter(kind.elementType)

    def convert(value: Any, path: str, mismatches: Mismatches) -> Any:
        if not isinstance(value, list):
            return _misfit(value, path, mismatches)
        return [element(inner, f"{path}.{number}", mismatches) for number, inner in enumerate(value)]

    return convert


def _map(kind: types.MapType) -> Convert:
    if not isinstance(kind.keyType, types.StringType):
        raise SettingsError("the keys of a map column are strings", hint="Declare map<string, ...>.")
    inner = converter(kind.valueType)

    def convert(value: Any, path: str, mismatches: Mismatches) -> Any:
        if not isinstance(value, Mapping):
            return _misfit(value, path, mismatches)
        return [(name, inner(item, f"{path}.{name}", mismatches)) for name, item in value.items()]

    return convert


def _misfit(value: Any, path: str, mismatches: Mismatches) -> None:
    if value is not None:
        mismatches.append(path)


def _integer(bits: int) -> Callable[[Any], int]:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise _Misfit
        if not -limit <= value < limit:
            raise _Misfit
        return int(value)

    return convert


def _decimal(kind: types.DecimalType) -> Callable[[Any], Decimal]:
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        exact = to_decimal(value) if isinstance(value, Decimal128) else _number(value)
        number = Decimal(str(exact)).quantize(unit)
        if not number.is_finite() or len(number.as_tuple().digits) > kind.precision:
            raise _Misfit
        return number

    return convert


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Misfit
    return value


def _double(value: Any) -> float:
    return float(to_decimal(value)) if isinstance(value, Decimal128) else float(_number(value))


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Misfit
    return value


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, ObjectId):
        return value.binary.hex()
    return extended_json.relaxed_of(value).decode()


def _microseconds(value: Any) -> int:
    if isinstance(value, DatetimeMS) and -_FARTHEST_MS <= int(value) <= _FARTHEST_MS:
        return int(value) * 1_000
    if isinstance(value, Timestamp):
        return value.time * 1_000_000
    raise _Misfit


def _day(value: Any) -> date:
    return _EPOCH + timedelta(days=_microseconds(value) // 86_400_000_000)


def _bytes(value: Any) -> bytes:
    if isinstance(value, ObjectId):
        return value.binary
    if not isinstance(value, bytes):
        raise _Misfit
    return bytes(value)


_SCALARS: Mapping[type[types.DataType], Callable[[Any], Any]] = {
    types.StringType: _string,
    types.DoubleType: _double,
    types.FloatType: _double,
    types.BooleanType: _boolean,
    types.TimestampType: _microseconds,
    types.DateType: _day,
    types.BinaryType: _bytes,
}
