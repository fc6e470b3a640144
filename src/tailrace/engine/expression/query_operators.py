"""The tests of a query on single values: comparisons, `$in`, `$type`, `$regex`, `$mod` and the bit tests."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace import raw
from tailrace.engine.expression.arithmetic import truncated_remainder
from tailrace.engine.expression.conditions import Test
from tailrace.engine.expression.failures import Failure, check, fail
from tailrace.engine.expression.numbers import (
    as_double,
    as_long,
    decimal_to_long,
    fits_int32,
    fits_int64,
    format_double,
    is_int64,
)
from tailrace.engine.expression.ordering import ValueSet, compare, is_nan, rank
from tailrace.engine.expression.parsing import Version
from tailrace.engine.expression.pcre import MatchFailed, PatternError, compile_pattern, is_utf8
from tailrace.engine.expression.regex_operators import check_options
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.values import (
    MAX_KEY,
    MIN_KEY,
    MISSING,
    UNDEFINED,
    Binary,
    Regex,
    Symbol,
    Value,
    is_number,
    kind_of,
)
from tailrace.raw.bson_types import TYPE_NUMBERS
from tailrace.raw.decimals import to_decimal
from tailrace.server_codes import BAD_VALUE, FAILED_TO_PARSE, TYPE_MISMATCH

if TYPE_CHECKING:
    from tailrace.engine.expression.pattern import Pattern


_JUDGES: Final[dict[str, Callable[[int, int], bool]]] = {
    "$eq": operator.eq, "$lt": operator.lt, "$lte": operator.le, "$gt": operator.gt,
    "$gte": operator.ge,
}  # fmt: skip


def comparison(name: str, right: Value) -> Test:
    """Compare with a constant; other types than its own never pass, except that null means missing."""
    check(right is not UNDEFINED, BAD_VALUE, "cannot compare to undefined")
    if name == "$eq" and type(right) is str:
        return _equal_to_string(right)
    judge = _JUDGES[name]
    inclusive = name in ("$eq", "$lte", "$gte")
    right_rank, right_nan = rank(right), is_nan(right)

    def test(value: Value) -> bool:
        rank_of_type = rank(value)
        if rank_of_type != right_rank:
            if rank_of_type + right_rank == 5:
                return inclusive
            if right is MAX_KEY:
                return name in ("$lt", "$lte")
            return right is MIN_KEY and name in ("$gt", "$gte")
        if name != "$eq" and (right_nan or is_nan(value)):
            return inclusive and right_nan and is_nan(value)
        return judge(compare(value, right), 0)

    return test


def _equal_to_string(right: str) -> Test:
    def test(value: Value) -> bool:
        if type(value) is str:
            return bool(value == right)
        return type(value) is Symbol and value.text == right

    return test


def membership(values: Sequence[Value], version: Version) -> Test:
    """Look a value up among constants and patterns."""
    equalities = ValueSet([value for value in values if type(value) is not Regex])
    patterns = [regex(value.pattern, value.options, version) for value in values if type(value) is Regex]
    for value in values:
        check(value is not UNDEFINED, BAD_VALUE, "InMatchExpression equality cannot be undefined")
    has_null = None in equalities

    def test(value: Value) -> bool:
        if value is MISSING or value is UNDEFINED:
            return has_null
        return value in equalities or any(pattern(value) for pattern in patterns)

    return test


def regex(pattern: str, options: str, version: Version) -> Test:
    """Search strings for a pattern; a regex value passes when it is the same one."""
    if version >= (5, 1):
        # Older servers overlook letters that are no options.
        check_options(options, "", version)
    no_null = "\0" not in pattern
    check(no_null, BAD_VALUE, "Regular expression cannot contain an embedded null byte")
    try:
        compiled = compile_pattern(pattern, options)
        if version < (7, 0):
            # The server also compiles the pattern in parentheses, which an open comment or quotation spoils.
            compile_pattern(f"(?:{pattern})", options)
    except PatternError as error:
        fail(51091, f"Regular expression is invalid: {error}")
    same = Regex(pattern, options)

    def test(value: Value) -> bool:
        if type(value) is str:
            return _found(compiled, value)
        if type(value) is Symbol:
            return _found(compiled, value.text)
        return type(value) is Regex and value == same

    return test


def _found(pattern: Pattern, text: str) -> bool:
    """Search; a match that costs more than the server allows is none there."""
    try:
        return is_utf8(text) and pattern.matches(text)
    except MatchFailed:
        return False


def exists(value: Value) -> bool:
    """Say whether there is anything."""
    return value is not MISSING


_NUMBER_KINDS: Final = frozenset({raw.DOUBLE, raw.INT32, raw.INT64, raw.DECIMAL128})


def type_test(name: str, given: Value) -> Test:
    """Look at the type of a value; `given` is a type's number or name, or a list of them."""
    kinds: set[int] = set()
    for item in given if type(given) is list else [given]:
        kinds |= _type_kinds(item)
    check(kinds, FAILED_TO_PARSE, f"{name} must match at least one type")
    return lambda value: kind_of(value) in kinds


def _type_kinds(given: Value) -> frozenset[int]:
    if type(given) is str:
        if given == "number":
            return _NUMBER_KINDS
        if given == "missing":
            fail(
                BAD_VALUE,
                "'missing' is not a legal type name. To query for non-existence of a field, use {$exists:false}.",
            )
        check(given in TYPE_NUMBERS, BAD_VALUE, f"Unknown type name alias: {given}")
        return frozenset({TYPE_NUMBERS[given]})
    if not is_number(given):
        fail(TYPE_MISMATCH, "type must be represented as a number or a string")
    message = f"Invalid numerical type code: {format_double(as_double(given))}"
    try:
        number = parse_integer(given)
    except Failure:
        fail(BAD_VALUE, message)
    check(number != 0, BAD_VALUE, message + ". Instead use {$exists:false}.")
    kind = raw.MIN_KEY if number == -1 else number
    check(number != raw.MIN_KEY and kind in TYPE_NUMBERS.values(), BAD_VALUE, message)
    return frozenset({kind})


def parse_integer(value: Value, *, least: int | None = None, bits: int = 32) -> int:
    """Read a number that must be an integer; `least` is 0 where it must not be negative."""
    shown = render(value)
    if not is_number(value):
        fail(FAILED_TO_PARSE, f"Expected a number in: {shown}")
    check(is_int64(value), FAILED_TO_PARSE, f"Expected an integer: {shown}")
    number = as_long(value)
    check(bits == 64 or fits_int32(number), FAILED_TO_PARSE, f"Cannot represent {shown} in an int")
    message = f"Expected a non-negative number in: {shown}"
    check(least is None or number >= least, FAILED_TO_PARSE, message)
    return number


def modulo(given: Value, version: Version) -> Test:
    """Test the remainder of a division; before 5.0 numbers were forced into integers, whatever they were."""
    if type(given) is not list:
        fail(BAD_VALUE, "malformed mod, needs to be an array")
    check(given, BAD_VALUE, "malformed mod, not enough elements")
    check(is_number(given[0]), BAD_VALUE, "malformed mod, divisor not a number")
    check(len(given) > 1, BAD_VALUE, "malformed mod, not enough elements")
    if version >= (4, 4):
        check(is_number(given[1]), BAD_VALUE, "malformed mod, remainder not a number")
    check(len(given) == 2, BAD_VALUE, "malformed mod, too many elements")
    before_5 = version < (5, 0)
    if before_5:
        divisor, remainder = (_forced(number, 31) if is_number(number) else 0 for number in given)
    else:
        divisor, remainder = _coerced(given[0], "divisor"), _coerced(given[1], "remainder")
    check(divisor != 0, BAD_VALUE, "divisor cannot be 0")

    def test(value: Value) -> bool:
        whole = _forced(value, 63) if before_5 and is_number(value) else _cut(value)
        return whole is not None and truncated_remainder(whole, divisor) == remainder

    return test


def _forced(value: Value, bits: int) -> int:
    """Force a number into an integer of so many bits, as the processor does: too large is the smallest."""
    if type(value) is Decimal128:
        return decimal_to_long(to_decimal(value))
    if type(value) is float and not -(2.0**bits) <= value < 2.0**bits:
        return -(1 << bits)
    number, size = int(value), 1 << bits
    return number if -size <= number < size else (number + size) % (2 * size) - size


def _coerced(value: Value, what: str) -> int:
    whole = _cut(value)
    if whole is None:
        fail(BAD_VALUE, f"malformed mod, {what} value is invalid")
    return whole


def _cut(value: Value) -> int | None:
    """Cut a number to a 64-bit integer; None when it is none, or too large."""
    kind = type(value)
    if kind is int or kind is Int64:
        return int(value)
    if kind is float:
        number = int(value) if math.isfinite(value) else None
    elif kind is Decimal128:
        decimal = to_decimal(value)
        number = int(decimal) if decimal.is_finite() and decimal.adjusted() < 20 else None
    else:
        return None
    return number if number is not None and fits_int64(number) else None


def bit_test(name: str, given: Value, version: Version) -> Test:
    """Look at bits of integers and binaries."""
    positions = _bit_positions(name, given)
    mask = _bit_mask(given, positions)
    expects_set = name in ("$bitsAllSet", "$bitsAnySet")
    combine = all if name in ("$bitsAllSet", "$bitsAllClear") else any

    def test(value: Value) -> bool:
        if type(value) is Binary:
            return combine(_bit(value.data, position) is expects_set for position in positions)
        number = _integer(value, version)
        if number is None:
            return False
        bits = (number if expects_set else ~number) & (2**64 - 1) & mask
        return bits == mask if combine is all else bits != 0

    return test


def _bit_positions(name: str, given: Value) -> list[int]:
    if type(given) is list:
        positions = []
        for item in given:
            try:
                positions.append(parse_integer(item, least=0))
            except Failure as failure:
                fail(BAD_VALUE, f"Failed to parse bit position. {failure.message}")
        return positions
    if is_number(given):
        mask = parse_integer(given, least=0, bits=64)
        return [bit for bit in range(64) if mask >> bit & 1]
    if type(given) is Binary:
        return [bit for bit in range(len(given.data) * 8) if _bit(given.data, bit)]
    shown = f"{name}: {render(given)}"
    raise Failure(BAD_VALUE, f"{name} takes an Array, a number, or a BinData but received: {shown}")


def _bit_mask(given: Value, positions: list[int]) -> int:
    """Give the bits to look at in an integer; everything from bit 63 on is the sign."""
    mask = 0
    for position in positions:
        mask |= 1 << min(position, 63)
    if type(given) is Binary:
        # The server takes bytes for signed: one over 127 asks for all the bits above it too.
        for index, byte in enumerate(given.data[:8]):
            if byte > 127:
                mask |= -(1 << (8 * index + 7)) & (2**64 - 1)
    return mask


def _bit(data: bytes, position: int) -> bool:
    return position < len(data) * 8 and bool(data[position // 8] >> position % 8 & 1)


def _integer(value: Value, version: Version) -> int | None:
    """Give the integer to look at the bits of."""
    if type(value) is float:
        return int(value) if is_int64(value) else None
    if type(value) is Decimal128:
        if version >= (7, 0) and not is_int64(value):
            return None
        return decimal_to_long(to_decimal(value))
    return int(value) if is_number(value) else None
