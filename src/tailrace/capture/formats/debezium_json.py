"""Extended JSON as MongoDB's Java driver writes it inside Debezium's records, byte for byte.

Three spellings occur: `strict` for documents and sessions, `relaxed` for keys, `relaxed_update` for what an update set.
orjson writes the text without blanks; they are put in afterwards, and so are the escapes of characters that Java takes
for unprintable. What pymongo cannot hold (a symbol, undefined, a DBPointer, a field that is there twice) is decoded by
a walk of ours.
"""

from __future__ import annotations

import base64
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import bson
import orjson
from bson.binary import Binary
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.errors import BsonMalformed, EventUnconvertible
from tailrace.raw import extended_json

_PASS_SUBCLASSES: Final = orjson.OPT_PASSTHROUGH_SUBCLASS
_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7
"""Between these Java and orjson write a double alike; Java writes others with an exponent."""
_OLD_BINARY: Final = 2
"""The subtype whose payload has a length of its own."""
_PRINTED = (
    "Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Zs", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So",
)  # fmt: skip
"""The categories of characters that the Java driver writes as they are."""
_LATER: Final = [
    (0x1C89, 0x1C8A), (0x2427, 0x2429), (0x2FFC, 0x2FFF), (0x31EF, 0x31EF), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC),
]  # fmt: skip
"""What came after Unicode 15.0, which is that of Java 21: keys must not depend on the release of Python."""


class _Double(float):
    """A double that Java does not write as orjson does."""

    __slots__ = ()


class _Symbol(NamedTuple):
    text: str


class _Undefined:
    """The deprecated value."""


class _Pointer(NamedTuple):
    namespace: str
    id: ObjectId


class _DoubleDecoder(TypeDecoder):
    bson_type = float

    def transform_bson(self, value: float) -> float:
        if _PLAIN_FROM <= value < _PLAIN_BELOW or -_PLAIN_BELOW < value <= -_PLAIN_FROM or value == 0.0:
            return value
        return _Double(value)


_OPTIONS: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, type_registry=TypeRegistry([_DoubleDecoder()])
)


# --- the three spellings


def strict(document: Mapping[str, Any]) -> str:
    """Write a document as `before`, `after` and `lsid` have it."""
    return _spaced(_dumps(document, _STRICT_HOOK))


def relaxed(value: Any) -> str:
    """Write a value as keys have it."""
    return _spaced(_dumps(value, _RELAXED_HOOK))


def relaxed_update(updated_fields: Mapping[str, Any]) -> str:
    """Write what an update set; here a blank follows each comma."""
    return _spaced(_dumps(updated_fields, _RELAXED_HOOK), commas=True)


def _dumps(value: Any, hook: Callable[[Any], Any]) -> bytes:
    try:
        return orjson.dumps(value, hook, _PASS_SUBCLASSES)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise EventUnconvertible(f"the event cannot be written as JSON: {error}") from error


# --- decoding


class Part(NamedTuple):
    """A document of an event, decoded into what is written here."""

    data: bytes
    fields: dict[str, Any]
    is_exact: bool
    """Whether pymongo can hold all of it."""


def decode(document: bytes) -> Part:
    """Decode a document; of a field that is there twice the last value counts, as in Java."""
    try:
        fields = bson.decode(document, _OPTIONS)
    except (bson.errors.BSONError, RecursionError):
        return Part(document, _walked(document), False)  # pymongo refuses a UUID of another length than 16
    if extended_json.is_exact(fields, document):
        return Part(document, fields, True)
    return Part(document, _walked(document), False)


def _walked(document: bytes, start: int = 0) -> dict[str, Any]:
    try:
        return {name.decode(): _value(document, kind, a, b) for kind, name, a, b in raw.elements(document, start)}
    except (BsonMalformed, bson.errors.BSONError, UnicodeDecodeError, RecursionError) as error:
        raise EventUnconvertible(f"the event cannot be decoded: {error}") from error


def _value(document: bytes, kind: int, start: int, end: int) -> Any:
    if kind == raw.DOCUMENT:
        return _walked(document, start)
    if kind == raw.ARRAY:
        return [_value(document, kind, a, b) for kind, _, a, b in raw.elements(document, start)]
    if kind == raw.SYMBOL:
        return _Symbol(raw.string_at(document, start).decode())
    if kind == raw.UNDEFINED:
        return _Undefined()
    if kind == raw.DB_POINTER:
        return _Pointer(raw.string_at(document, start).decode(), ObjectId(document[end - 12 : end]))
    if kind == raw.BINARY:
        subtype, payload = raw.binary_at(document, start)
        return Binary(payload[4:] if subtype == _OLD_BINARY else payload, subtype)
    return bson.decode(raw.document(raw.element(kind, b"v", document[start:end])), _OPTIONS)["v"]


# --- text


def _spaced(text: bytes, *, commas: bool = False) -> str:
    """Put a blank behind each colon that follows a name, and behind each comma if that is wanted."""
    parts = _strings(text)
    for number in range(0, len(parts), 2):  # what stands between the strings
        part = parts[number].replace(b":", b": ")
        parts[number] = part.replace(b",", b", ") if commas else part
    text = b"".join(parts)
    spaced = text.decode()
    return spaced if text.isascii() and b"\x7f" not in text else _unprintable().sub(_escaped, spaced)


_strings = re.compile(rb'("(?:[^"\\]+|\\.)*")').split


@cache
def unprintable_ranges() -> list[tuple[int, int]]:
    """Give the characters that the Java driver escapes, from first to last; beyond the first plane all of them."""
    printed = frozenset(_PRINTED)
    unprinted = (code for code in range(0x7F, 0x10000) if unicodedata.category(chr(code)) not in printed)
    ranges: list[tuple[int, int]] = []
    for code in unprinted:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = ranges[-1][0], code
        else:
            ranges.append((code, code))
    return [*ranges, (0x10000, sys.maxunicode), *_LATER]


@cache
def _unprintable() -> re.Pattern[str]:
    """Find the characters that the Java driver escapes; made when the first text has others than ASCII's."""
    return re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in unprintable_ranges())}]")


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def java_double(value: float) -> str:
    """Write a double as Java 19 and later do: the shortest digits, at least two; an exponent outside 1e-3 to 1e7."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0.0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return repr(value)
    mantissa, _, exponent = f"{value:.16e}".partition("e")
    for precision in range(1, 17):  # the shortest that is read back as the same
        mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
        if float(f"{mantissa}e{exponent}") == value:
            break
    return f"{mantissa}E{int(exponent)}"


# --- values that JSON lacks

_Table = dict[type, Callable[[Any], Any]]


def _hook(table: _Table) -> Callable[[Any], Any]:
    def written(value: Any) -> Any:
        try:
            return table[type(value)](value)
        except KeyError:
            raise TypeError(f"{type(value).__name__} is not a type of BSON") from None

    return written


def _fragment(text: str) -> Any:
    return orjson.Fragment(text.encode())


def _quoted(name: str) -> Callable[[Any], Any]:
    return lambda value: _fragment(f'{{"{name}":"{value}"}}')


def _relaxed_double(value: float) -> Any:
    text = java_double(value)
    return _fragment(text if math.isfinite(value) else f'{{"$numberDouble":"{text}"}}')


def _relaxed_date(value: DatetimeMS) -> Any:
    """ISO 8601 between 1970 and 9999, with as many digits behind the second as it needs."""
    text = extended_json.date_text(int(value))
    if text is None:
        return _fragment(f'{{"$date":{{"$numberLong":"{int(value)}"}}}}')
    return _fragment(f'{{"$date":"{text.rstrip("Z").rstrip("0") if "." in text else text.rstrip("Z")}Z"}}')


def _base64_and_type(value: bytes) -> tuple[str, str]:
    subtype = value.subtype if isinstance(value, Binary) else 0
    return base64.b64encode(value).decode(), f"{subtype:02x}"


def _relaxed_binary(value: bytes) -> Any:
    content, subtype = _base64_and_type(value)
    return _fragment(f'{{"$binary":{{"base64":"{content}","subType":"{subtype}"}}}}')


def _strict_binary(value: bytes) -> Any:
    content, subtype = _base64_and_type(value)
    return _fragment(f'{{"$binary":"{content}","$type":"{subtype}"}}')


def _code(value: Code) -> Any:
    return {"$code": str(value)} if value.scope is None else {"$code": str(value), "$scope": dict(value.scope)}


def _regex_options(value: Regex[Any]) -> str:
    flags = ((re.I, "i"), (re.L, "l"), (re.M, "m"), (re.S, "s"), (re.U, "u"), (re.X, "x"))
    return "".join(letter for flag, letter in flags if value.flags & flag)


_COMMON: Final[_Table] = {
    ObjectId: _quoted("$oid"),
    Decimal128: _quoted("$numberDecimal"),
    Timestamp: lambda value: _fragment(f'{{"$timestamp":{{"t":{value.time},"i":{value.inc}}}}}'),
    MinKey: lambda value: {"$minKey": 1},
    MaxKey: lambda value: {"$maxKey": 1},
    DBRef: lambda value: dict(value.as_doc()),
    Code: _code,
    _Symbol: lambda value: {"$symbol": value.text},
    _Undefined: lambda value: {"$undefined": True},
    _Pointer: lambda value: {"$ref": value.namespace, "$id": value.id},
}
_RELAXED_HOOK: Final = _hook(
    {
        **_COMMON,
        Int64: int,
        _Double: _relaxed_double,
        DatetimeMS: _relaxed_date,
        bytes: _relaxed_binary,
        Binary: _relaxed_binary,
        Regex: lambda value: {
            "$regularExpression": {"pattern": value.pattern, "options": _regex_options(value)},
        },
    }
)
_STRICT_HOOK: Final = _hook(
    {
        **_COMMON,
        Int64: lambda value: _fragment(f'{{"$numberLong":"{int(value)}"}}'),
        _Double: lambda value: _fragment(java_double(value)),
        DatetimeMS: lambda value: _fragment(f'{{"$date":{int(value)}}}'),
        bytes: _strict_binary,
        Binary: _strict_binary,
        Regex: lambda value: {"$regex": value.pattern, "$options": _regex_options(value)},
    }
)
