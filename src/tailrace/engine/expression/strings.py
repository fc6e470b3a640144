"""String operators. Positions count bytes or code points; upper and lower case are those of ASCII."""

from __future__ import annotations

from typing import Final

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.timestamp import Timestamp

from tailrace.engine.expression.date_formatting import format_iso
from tailrace.engine.expression.failures import Failure, check, fail
from tailrace.engine.expression.meter import ELEMENT, check_string, spend
from tailrace.engine.expression.nodes import Evaluate, Node, Operator, Slots
from tailrace.engine.expression.numbers import as_int, as_long, format_decimal, format_double, is_int32
from tailrace.engine.expression.parsing import (
    Arguments,
    Arity,
    Delayed,
    Scope,
    associative,
    call_with,
    function,
    parser,
)
from tailrace.engine.expression.rendering import render
from tailrace.engine.expression.values import (
    Binary,
    Code,
    Date,
    Symbol,
    Value,
    expect,
    is_nullish,
    is_number,
    text_of,
    type_name,
    utf8,
)

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def to_text(value: Value) -> str:
    """Turn a value into a string where an operator expects one; nothing is the empty string."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is float:
        return format_double(value)
    if kind is int or kind is Int64:
        return str(int(value))
    if kind is Decimal128:
        return format_decimal(value)
    if kind is Code:
        return str(value.source)
    if kind is Symbol:
        return str(value.text)
    if kind is Date:
        return format_iso(value.millis)
    if kind is Timestamp:
        return _format_timestamp(value)
    if is_nullish(value):
        return ""
    raise Failure(16007, f"can't convert from BSON type {type_name(value)} to String")


def _format_timestamp(value: Timestamp) -> str:
    moment = value.as_datetime()
    day = f"{_MONTHS[moment.month - 1]} {moment.day:2d} {moment:%H:%M:%S}"
    return f"{day}:{value.inc}"


def _is_continuation(data: bytes, index: int) -> bool:
    return data[index] & 0xC0 == 0x80


@associative("$concat", commutative=False)
def concat(*operands: Evaluate) -> Evaluate:
    """Join strings."""

    def evaluate(slots: Slots) -> Value:
        parts = []
        for operand in operands:
            value = operand(slots)
            if is_nullish(value):
                return None
            expect(value, str, 16702, "$concat only supports strings, not ")
            parts.append(value)
        check_string(sum(map(len, parts)))
        return "".join(parts)

    return evaluate


_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


@function("$toUpper")
def to_upper(value: Value) -> Value:
    """Turn ASCII letters to upper case."""
    return to_text(value).translate(_UPPER)


@function("$toLower")
def to_lower(value: Value) -> Value:
    """Turn ASCII letters to lower case."""
    return to_text(value).translate(_LOWER)


@function("$strcasecmp", arity=2)
def compare_without_case(left: Value, right: Value) -> Value:
    """Compare strings as if all ASCII letters were upper case."""
    one, other = to_text(left).translate(_UPPER), to_text(right).translate(_UPPER)
    return (one > other) - (one < other)


@function("$strLenBytes")
def length_in_bytes(value: Value) -> Value:
    """Count the bytes of a string."""
    expect(value, str, 34473, "$strLenBytes requires a string argument, found: ")
    return len(utf8(value))


@function("$strLenCP")
def length_in_code_points(value: Value) -> Value:
    """Count the code points of a string."""
    expect(value, str, 34471, "$strLenCP requires a string argument, found: ")
    return len(value)


@function("$binarySize", since=(4, 4), null_for_null=True)
def binary_size(value: Value) -> Value:
    """Count the bytes of a string or a binary."""
    if type(value) is str:
        return len(utf8(value))
    expect(value, Binary, 51276, "$binarySize requires a string or BinData argument, found: ")
    return len(value.data)


@parser("$substrBytes", "$substr")
def parse_substring(name: str, value: Value, scope: Scope) -> Node:
    """Read a string, a first byte and a number of bytes; `$substr` is the older name."""
    operands = Arity(3, 3).parse(name, value, scope)
    decimals = scope.context.version >= (5, 0)

    def compute(text: Value, start: Value, length: Value) -> Value:
        data = utf8(to_text(text))
        lower = _byte_index(name, start, 16034, "starting index", decimals)
        count = _byte_index(name, length, 16035, "length", decimals)
        return _substring_of_bytes(name, data, lower, count)

    return Operator(name, operands, lambda *given: call_with(compute, given))


def _byte_index(name: str, value: Value, code: int, what: str, decimals: bool) -> Value:
    if not is_number(value) or (type(value) is Decimal128 and not decimals):
        fail(code, f"{name}:  {what} must be a numeric type (is BSON type {type_name(value)})")
    return value


def _substring_of_bytes(name: str, data: bytes, start: Value, length: Value) -> str:
    lower = as_long(start)
    check(lower >= 0, 50752, f"{name}:  starting index must be non-negative (got: {lower})")
    count = as_long(length)
    upper = lower + (len(data) if count < 0 else count)
    if lower < len(data) and _is_continuation(data, lower):
        fail(28656, f"{name}:  Invalid range, starting index is a UTF-8 continuation byte.")
    if upper < len(data) and _is_continuation(data, upper):
        fail(28657, f"{name}:  Invalid range, ending index is in the middle of a UTF-8 character.")
    return text_of(data[lower:upper])


@function("$substrCP", arity=3)
def substring_of_code_points(value: Value, start: Value, length: Value) -> Value:
    """Cut a part out of a string, counted in code points."""
    text = to_text(value)
    if not is_number(start):
        found = type_name(start)
        fail(34450, f"$substrCP: starting index must be a numeric type (is BSON type {found})")
    if not is_int32(start):
        fail(34451, "$substrCP: starting index cannot be represented as a 32-bit integral value: " + render(start))
    if not is_number(length):
        found = type_name(length)
        fail(34452, f"$substrCP: length must be a numeric type (is BSON type {found})")
    if not is_int32(length):
        fail(34453, "$substrCP: length cannot be represented as a 32-bit integral value: " + render(length))
    first, count = as_int(start), as_int(length)
    check(count >= 0, 34454, "$substrCP: length must be a nonnegative integer.")
    check(first >= 0, 34455, "$substrCP: the starting index must be nonnegative integer.")
    return text[first : first + count]


def bound(name: str, value: Value, what: str) -> int:
    """Read an index of `$indexOf...`: an integer from 0 on."""
    if not is_int32(value):
        fail(
            40096,
            f"{name}requires an integral {what}, found a value of type: {type_name(value)}, "
            f"with value: {render(value)}",
        )
    index = as_int(value)
    check(index >= 0, 40097, f"{name} requires a nonnegative {what}, found: {index}")
    return index


def _index_of(name: str, codes: tuple[int, int]) -> None:
    in_bytes = name == "$indexOfBytes"

    @function(name, arity=Arity(2, 4), delayed=1, null_for_null=True)
    def compute(value: Value, second: Delayed, *limits: Delayed) -> Value:
        expect(value, str, codes[0], f"{name} requires a string as the first argument, found: ")
        token = second()
        expect(token, str, codes[1], f"{name} requires a string as the second argument, found: ")
        text, wanted = (utf8(value), utf8(token)) if in_bytes else (value, token)
        start = bound(name, limits[0](), "starting index") if limits else 0
        end = len(text)
        if len(limits) > 1:
            end = min(end, bound(name, limits[1](), "ending index"))
        return _search(text, wanted, start, end, in_bytes)


def _search(text: str | bytes, wanted: str | bytes, start: int, end: int, in_bytes: bool) -> int:
    if start > len(text) or end < start:
        return -1
    if in_bytes:
        return text[:end].find(wanted, start)  # type: ignore[arg-type]
    if not text and not wanted and start == 0:
        return 0
    # In code points only the beginning of the token must lie before the end.
    position = text.find(wanted, start)  # type: ignore[arg-type]
    return position if position < end else -1


_index_of("$indexOfBytes", (40091, 40092))
_index_of("$indexOfCP", (40093, 40094))


@function("$split", arity=2, null_for_null=True)
def split(value: Value, separator: Value) -> Value:
    """Split a string at every occurrence of another."""
    needs = "$split requires an expression that evaluates to a string as a"
    expect(value, str, 40085, f"{needs} first argument, found: ")
    expect(separator, str, 40086, f"{needs} second argument, found: ")
    check(separator, 40087, "$split requires a non-empty separator")
    spend((value.count(separator) + 1) * ELEMENT)
    return value.split(separator)


_WHITESPACE: Final = "\0 \t\n\v\f\r\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))


@parser("$trim", "$ltrim", "$rtrim")
def parse_trim(name: str, value: Value, scope: Scope) -> Node:
    """Read what to trim and, perhaps, the characters to trim."""
    arguments = Arguments(
        names=("input", "chars"),
        in_order=True,
        not_object=(50696, name + " only supports an object as an argument, found {}"),
        unknown=(50694, name + " found an unknown argument: {}"),
        required={"input": (50695, f"{name} requires an 'input' field")},
    )
    strip = {"$trim": str.strip, "$ltrim": str.lstrip, "$rtrim": str.rstrip}[name]

    def text(value: Value, code: int, what: str) -> str | None:
        if is_nullish(value):
            return None
        if type(value) is not str:
            shown = f"{render(value)} (of type {type_name(value)}) instead."
            fail(code, f"{name} requires {what} to be a string, got {shown}")
        return value

    def build(source: Evaluate, characters: Evaluate | None) -> Evaluate:
        def evaluate(slots: Slots) -> Value:
            string = text(source(slots), 50699, "its input")
            if string is None or characters is None:
                return string and strip(string, _WHITESPACE)
            chars = text(characters(slots), 50700, "'chars'")
            if chars is None:
                return None
            return strip(string, chars) if chars else string

        return evaluate

    return Operator(name, arguments.parse(value, scope), build)


@parser("$replaceOne", "$replaceAll", since=(4, 4))
def parse_replace(name: str, value: Value, scope: Scope) -> Node:
    """Read what to search, and what to put in its place."""
    arguments = Arguments(
        names=("input", "find", "replacement"),
        in_order=True,
        not_object=(51751, name + " requires an object as an argument, found: {}"),
        unknown=(51750, name + " found an unknown argument: {}"),
        required={
            "input": (51749, f"{name} requires 'input' to be specified"),
            "find": (51748, f"{name} requires 'find' to be specified"),
            "replacement": (51747, f"{name} requires 'replacement' to be specified"),
        },
    )
    codes = {"input": 51746, "find": 51745, "replacement": 51744}

    def compute(source: Value, find: Value, replacement: Value) -> Value:
        values = {"input": source, "find": find, "replacement": replacement}
        for what, given in values.items():
            if type(given) is not str and not is_nullish(given):
                fail(codes[what], f"{name} requires that '{what}' be a string, found: {render(given)}")
        if any(type(given) is not str for given in values.values()):
            return None
        return _replace(source, find, replacement, every=name == "$replaceAll")

    nodes = arguments.parse(value, scope)
    return Operator(name, nodes, lambda *operands: call_with(compute, operands), folds=False)


def _replace(text: str, find: str, replacement: str, *, every: bool) -> str:
    if every:
        check_string(len(text) + (text.count(find) if find else len(text)) * (len(replacement) - len(find)))
    if find or not every:
        return text.replace(find, replacement) if every else text.replace(find, replacement, 1)
    # The server puts the replacement between bytes, not between characters.
    put = utf8(replacement)
    return text_of(put + b"".join(bytes([byte]) + put for byte in utf8(text)))
