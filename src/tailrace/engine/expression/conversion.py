"""Type conversion: `$convert`, and `$toInt` and its siblings."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, Final, NoReturn

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.engine.expression import date_parsing
from tailrace.engine.expression.date_formatting import format_iso
from tailrace.engine.expression.dates import as_millis
from tailrace.engine.expression.failures import Failure, check, fail
from tailrace.engine.expression.nodes import Constant, Evaluate, Node, Operator, Slots
from tailrace.engine.expression.numbers import (
    DECIMAL128,
    as_decimal,
    as_double,
    as_int,
    fits_int32,
    fits_int64,
    format_decimal,
    format_double,
    is_int32,
    to_decimal128,
)
from tailrace.engine.expression.parsing import Arguments, Scope, Version, named, parse_operands, parser
from tailrace.engine.expression.timezones import UTC_ZONE
from tailrace.engine.expression.values import Date, Value, is_nullish, is_number, truth, type_name, type_name_of_kind
from tailrace.raw.bson_types import TYPE_NUMBERS
from tailrace.raw.decimals import to_decimal
from tailrace.server_codes import BAD_VALUE, CONVERSION_FAILURE, FAILED_TO_PARSE


def _fail(message: str) -> NoReturn:
    fail(CONVERSION_FAILURE, message)


_NO_ON_ERROR = "in $convert with no onError value"


def _whole(value: Value, fits: Callable[[int], bool]) -> int:
    """Cut a double or a decimal to an integer that fits."""
    number: Any = to_decimal(value) if type(value) is Decimal128 else value
    if math.isnan(number):
        _fail(f"Attempt to convert NaN value to integer type {_NO_ON_ERROR}")
    if math.isinf(number):
        _fail(f"Attempt to convert infinity value to integer type {_NO_ON_ERROR}")
    whole = int(number)
    inside = fits(whole) if type(value) is not float else _double_fits(number, fits)
    if not inside:
        shown = format_double(value) if type(value) is float else str(value)
        _fail(f"Conversion would overflow target type {_NO_ON_ERROR}: {shown}")
    return whole


def _double_fits(number: float, fits: Callable[[int], bool]) -> bool:
    # For 32 bits the server compares the double itself: 2147483647.5 does not fit.
    return fits(math.ceil(number)) and fits(math.floor(number))


def _to_int(value: Value) -> Value:
    if type(value) is Int64:
        if not fits_int32(value):
            _fail(f"Conversion would overflow target type {_NO_ON_ERROR}: ")
        return int(value)
    return _whole(value, fits_int32)


def _to_long(value: Value) -> Value:
    return Int64(_whole(value, fits_int64))


def _decimal_to_double(value: Decimal128) -> Value:
    number = to_decimal(value)
    result = float(number)
    if number.is_finite() and (math.isinf(result) or _underflows(number, result)):
        shown = format_decimal(value)
        _fail(f"Conversion would overflow target type {_NO_ON_ERROR}: {shown}")
    return result


def _underflows(number: Decimal, result: float) -> bool:
    return number != 0 and abs(result) < 2.2250738585072014e-308 and Decimal(result) != number


def _to_date(value: Value) -> Value:
    millis = int(value) if type(value) is Int64 else _whole(value, fits_int64)
    return Date(millis)


def _format_double(value: float) -> str:
    if math.isinf(value):
        return "-Infinity" if value < 0 else "Infinity"
    if math.isnan(value):
        return "NaN"
    if value == 0 and math.copysign(1, value) < 0:
        return "-0"
    return format_double(value)


def _format_double_exactly(value: float) -> str:
    """Write a double since 7.0: with as many digits as tell it from all others."""
    return repr(value).removesuffix(".0") if math.isfinite(value) else _format_double(value)


def _not_a_number(text: str, reason: str) -> NoReturn:
    _fail(f"Failed to parse number '{text}' {_NO_ON_ERROR}: {reason}")


def _check_prefix(text: str) -> None:
    if text.startswith("0x"):
        _fail(f"Illegal hexadecimal input {_NO_ON_ERROR}: {text}")


def _integer_parser(fits: Callable[[int], bool], make: type[int]) -> Callable[[Value], Value]:
    def parse(text: Value) -> Value:
        _check_prefix(text)
        if re.fullmatch(r"[+-]?[0-9]+", text) is None:
            _not_a_number(text, "Did not consume whole string.")
        number = int(text)
        if not fits(number):
            _not_a_number(text, "Overflow")
        return make(number)

    return parse


_DOUBLE = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan(?:\([a-z0-9_]*\))?)", re.IGNORECASE
)
_HEX_DOUBLE = re.compile(r"[+-]?0x[0-9a-f]+\.?[0-9a-f]*(?:p[+-]?[0-9]+)?", re.IGNORECASE)


def _parse_double(text: str) -> Value:
    _check_prefix(text)
    if _HEX_DOUBLE.fullmatch(text):
        return float.fromhex(text)
    if _DOUBLE.fullmatch(text) is None:
        _not_a_number(text, "Did not consume whole string.")
    if "nan" in text.lower():
        return -math.nan if text.startswith("-") else math.nan
    number = float(text)
    if "inf" not in text.lower():
        exact = Decimal(text)
        if math.isinf(number) or _underflows(exact, number):
            _not_a_number(text, "Out of range")
    return number


_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)


def _parse_decimal(text: str) -> Value:
    _check_prefix(text)
    if re.fullmatch(r"[+-]?(?:nan|inf|infinity)", text, re.IGNORECASE):
        return Decimal128(Decimal(text))
    if _DECIMAL.fullmatch(text) is None:
        _not_a_number(text, "Failed to parse string to decimal")
    context = DECIMAL128.copy()
    context.clear_flags()
    number = context.create_decimal(text)
    if context.flags[decimal.Overflow]:
        _not_a_number(text, "Conversion from string to decimal would overflow")
    if context.flags[decimal.Underflow]:
        _not_a_number(text, "Conversion from string to decimal would underflow")
    return Decimal128(number)


def _parse_object_id(text: str) -> Value:
    if re.fullmatch(r"[0-9a-fA-F]{24}", text) is None:
        _fail(
            f"Failed to parse objectId '{text}' {_NO_ON_ERROR}: Invalid string length for "
            f"parsing to OID, expected 24 but found {len(text)}"
        )
    return ObjectId(text)


def _parse_date(text: str) -> Value:
    return Date(date_parsing.to_millis(text, date_parsing.parse(text), UTC_ZONE))


def _same(value: Value) -> Value:
    return value


def _true(_: Value) -> Value:
    return True


def _decimal_of(value: Value) -> Value:
    return to_decimal128(as_decimal(value))


Convert = Callable[[Value], Value]
_CONVERSIONS: Final[dict[type, dict[int, Convert]]] = {
    float: {
        raw.DOUBLE: _same, raw.STRING: _format_double, raw.BOOL: truth, raw.DATE: _to_date,
        raw.INT32: _to_int, raw.INT64: _to_long, raw.DECIMAL128: _decimal_of,
    },
    str: {
        raw.DOUBLE: _parse_double, raw.STRING: _same, raw.OBJECT_ID: _parse_object_id,
        raw.BOOL: _true, raw.DATE: _parse_date, raw.INT32: _integer_parser(fits_int32, int),
        raw.INT64: _integer_parser(fits_int64, Int64), raw.DECIMAL128: _parse_decimal,
    },
    ObjectId: {
        raw.STRING: str, raw.OBJECT_ID: _same, raw.DATE: lambda value: Date(as_millis(value)),
    },
    bool: {
        raw.DOUBLE: float, raw.STRING: lambda value: "true" if value else "false",
        raw.BOOL: _same, raw.INT32: int, raw.INT64: Int64,
        raw.DECIMAL128: lambda value: Decimal128(str(int(value))),
    },
    Date: {
        raw.DOUBLE: lambda value: float(value.millis),
        raw.STRING: lambda value: format_iso(value.millis), raw.DATE: _same,
        raw.INT64: lambda value: Int64(value.millis),
        raw.DECIMAL128: lambda value: Decimal128(Decimal(value.millis)),
    },
    Timestamp: {raw.DATE: lambda value: Date(as_millis(value))},
    int: {
        raw.DOUBLE: as_double, raw.STRING: str, raw.BOOL: truth, raw.INT32: _same,
        raw.INT64: Int64, raw.DECIMAL128: _decimal_of,
    },
    Int64: {
        raw.DOUBLE: as_double, raw.STRING: str, raw.BOOL: truth, raw.DATE: _to_date,
        raw.INT32: _to_int, raw.INT64: _same, raw.DECIMAL128: _decimal_of,
    },
    Decimal128: {
        raw.DOUBLE: _decimal_to_double, raw.STRING: format_decimal, raw.BOOL: truth,
        raw.DATE: _to_date, raw.INT32: _to_int, raw.INT64: _to_long, raw.DECIMAL128: _same,
    },
}  # fmt: skip


def convert(value: Value, target: int, version: Version) -> Value:
    """Convert a value that is not nothing to the type of a BSON type number."""
    conversion = _CONVERSIONS.get(type(value), {}).get(target)
    if type(value) is Timestamp and version < (5, 1):
        conversion = None
    if conversion is _format_double and version >= (7, 0):
        conversion = _format_double_exactly
    if conversion is None and target == raw.BOOL:
        conversion = _true
    if conversion is None:
        _fail(f"Unsupported conversion from {type_name(value)} to {type_name_of_kind(target)} " + _NO_ON_ERROR)
    return conversion(value)


def _target(value: Value) -> int:
    """Read the type to convert to, a name or a number."""
    if type(value) is str:
        if value == "missing":
            return 0
        if value not in TYPE_NUMBERS:
            fail(BAD_VALUE, f"Unknown type name: {value}")
        return TYPE_NUMBERS[value]
    if is_number(value):
        whole = is_int32(value)
        check(whole, FAILED_TO_PARSE, "In $convert, numeric 'to' argument is not an integer")
        number = as_int(value)
        kind = raw.MIN_KEY if number == -1 else number
        if kind != 0 and (number == raw.MIN_KEY or kind not in TYPE_NUMBERS.values()):
            fail(FAILED_TO_PARSE, f"In $convert, numeric value for 'to' does not correspond to a BSON type: {number}")
        return kind
    raise Failure(FAILED_TO_PARSE, f"$convert's 'to' argument must be a string or number, but is {type_name(value)}")


_CONVERT: Final = Arguments(
    names=("input", "to", "onError", "onNull"),
    in_order=True,
    not_object=(FAILED_TO_PARSE, "$convert expects an object of named arguments but found: {}"),
    unknown=(FAILED_TO_PARSE, "$convert found an unknown argument: {}"),
    required={
        "input": (FAILED_TO_PARSE, "Missing 'input' parameter to $convert"),
        "to": (FAILED_TO_PARSE, "Missing 'to' parameter to $convert"),
    },
)


@named("$convert", _CONVERT)
def _build_convert(
    version: Version, source: Evaluate, to: Evaluate, on_error: Evaluate | None, on_null: Evaluate | None
) -> Evaluate:
    def evaluate(slots: Slots) -> Value:
        target = to(slots)
        value = source(slots)
        kind = None if is_nullish(target) else _target(target)
        if is_nullish(value):
            return on_null(slots) if on_null is not None else None
        if kind is None:
            return None
        try:
            return convert(value, kind, version)
        except Failure as failure:
            if failure.code == CONVERSION_FAILURE and on_error is not None:
                return on_error(slots)
            raise

    return evaluate


_SHORTCUTS: Final = {
    "$toString": "string", "$toObjectId": "objectId", "$toDate": "date", "$toDouble": "double",
    "$toInt": "int", "$toLong": "long", "$toDecimal": "decimal", "$toBool": "bool",
}  # fmt: skip


@parser(*_SHORTCUTS)
def parse_shortcut(name: str, value: Value, scope: Scope) -> Node:
    """Read the value to convert."""
    operands = parse_operands(value, scope)
    count = len(operands)
    check(count == 1, 50723, f"{name} requires a single argument, got {count}")
    children = [operands[0], Constant(_SHORTCUTS[name]), None, None]
    return Operator(name, children, partial(_build_convert, scope.context.version))
