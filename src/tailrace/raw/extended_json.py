"""Extended JSON at the speed of C and Rust: `bson` decodes, `orjson` encodes, Python sees only what JSON lacks.

Two spellings of the same documents, `relaxed` and `canonical`, as the Extended JSON specification (v2) and
`bson.json_util` have them.

Relaxed is the hot path. orjson writes strings, numbers, booleans, arrays and documents by itself and calls
`_relaxed_value` for each ObjectId, date and so on. It would get three things wrong, and each is noticed cheaply:

- Code is a `str` to it: so when a byte that could be Code's type byte is in the event, subclasses go through
  Python too;
- NaN and infinity become `null`: so when there is a `null` in the result, and in the event bytes that may end such a
  double, the document is converted value by value;
- documents nested over 254 levels are refused: they are left to `bson.json_util`.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import bson
import orjson
from bson import json_util
from bson.binary import Binary
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.json_util import JSONOptions
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from tailrace.errors import EventUnconvertible

Document = dict[str, Any]

# Dates stay numbers until they are written: making datetimes would cost more and reject years over 9999.
_OPTIONS: Final[CodecOptions[Document]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_DATETIMES: Final[CodecOptions[Document]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
_READ_OPTIONS: Final = JSONOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_LAST_YEAR_MS: Final = 253402300799999
_CODE: Final = 0x0D
_CODE_WITH_SCOPE: Final = 0x0F
_may_contain_non_finite = re.compile(rb"[\xf0-\xff][\x7f\xff]").search
_has_dollar_name = re.compile(rb"[\x01-\x13\x7f\xff]\$").search
_decode = bson.decode
_dumps = orjson.dumps


def decode(event: bytes) -> Document:
    """Decode a whole event; EventUnconvertible when its bytes are not BSON that Python can hold."""
    try:
        return _decode(event, _OPTIONS)
    except (bson.errors.BSONError, UnicodeDecodeError, RecursionError) as error:
        raise EventUnconvertible(f"the event cannot be decoded: {error}") from error


def is_exact(decoded: Mapping[str, Any], document: bytes) -> bool:
    """Whether a decoded document is all that was in its bytes.

    It is not when a field is there twice, or is of a type that Python turns into another one (symbol, undefined,
    DBPointer); nor when pymongo cannot write what it has read, as a binary of the subtype 255 (SystemError).
    """
    try:
        return _encoded(decoded) == document
    except SystemError:
        return False


def _encoded(decoded: Any) -> bytes:
    """Encode a document with its fields in their order; at the top level, pymongo would move `_id` to the front."""
    return bson.encode({"": decoded}, codec_options=_OPTIONS)[6:-1]


def may_look_like_a_value(document: bytes) -> bool:
    """Whether a field may have a name that begins with a dollar, as the values of Extended JSON do."""
    return b"$" in document and _has_dollar_name(document) is not None


def decode_for_people(event: bytes) -> Document:
    """Decode a whole event as pymongo does by default, with datetimes; dates that Python lacks stay numbers."""
    return _decode(event, _DATETIMES)


def relaxed(value: Any, event: bytes) -> bytes:
    """Write a decoded event, or a part of it, as relaxed Extended JSON; `event` is where it was decoded from."""
    option = orjson.OPT_PASSTHROUGH_SUBCLASS if _CODE in event or _CODE_WITH_SCOPE in event else None
    try:
        text = _dumps(value, _relaxed_value, option)
    except (orjson.JSONEncodeError, RecursionError):
        return _dumps_deep(value, json_util.RELAXED_JSON_OPTIONS)
    if (0x7F in event or 0xFF in event) and b"null" in text and _may_contain_non_finite(event):
        return _dumps(_convert(value, _RELAXED))
    return text


def relaxed_document(data: bytes) -> bytes:
    """Write a BSON document as relaxed Extended JSON."""
    return relaxed(decode(data), data)


def relaxed_of(value: Any) -> bytes:
    """Write anything that pymongo could store as relaxed Extended JSON, wherever it comes from."""
    return _dumps_deep(value, json_util.RELAXED_JSON_OPTIONS)


def canonical(value: Any) -> bytes:
    """Write a decoded event, or a part of it, as canonical Extended JSON."""
    try:
        return _dumps(_convert(value, _CANONICAL))
    except (orjson.JSONEncodeError, RecursionError):
        return _dumps_deep(value, json_util.CANONICAL_JSON_OPTIONS)


def _dumps_deep(value: Any, options: JSONOptions) -> bytes:
    """Write what is nested too deep for orjson."""
    try:
        return json_util.dumps(value, json_options=options, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError, ArithmeticError) as error:
        raise EventUnconvertible(f"the event cannot be written as JSON: {error}") from error


def is_canonical_of(text: bytes, document: bytes) -> bool:
    """Whether canonical Extended JSON of an exactly decoded document is turned back into the same bytes.

    It is tried only where that is in question: a NaN or a decimal has several forms of which the text tells one.
    """
    if b"$numberDecimal" not in text and b'"NaN"' not in text and not may_look_like_a_value(document):
        return True
    try:
        return _encoded(loads(text)) == document
    except (ValueError, TypeError, SystemError, bson.errors.BSONError):
        return False


# --- reading


def loads(text: str | bytes) -> Any:
    """Read Extended JSON of every spelling as what `bson` encodes; dates stay numbers, whatever their year."""
    return _read(orjson.loads(text))


def _read(value: Any) -> Any:
    """Turn parsed Extended JSON into values of BSON, from the inside out."""
    if isinstance(value, dict):
        inner = {name: _read(item) for name, item in value.items()}
        if inner and next(iter(inner)).startswith("$"):
            return _special(inner)
        return inner
    if isinstance(value, list):
        return [_read(item) for item in value]
    return value


def _special(form: Document) -> Any:
    date = form.get("$date")
    if isinstance(date, str):
        moment = datetime.fromisoformat(date)
        return DatetimeMS(round(moment.timestamp() * 1000))
    if isinstance(date, int):
        return DatetimeMS(int(date))
    return json_util.object_hook(form, _READ_OPTIONS)


# --- one value


def _relaxed_value(value: Any) -> Any:
    """Give what orjson shall write for a value it does not know."""
    kind = type(value)
    if kind is ObjectId:
        return {"$oid": value.binary.hex()}
    try:
        return _RELAXED[kind](value)
    except KeyError:
        raise TypeError(f"{kind.__name__} is not a type of BSON") from None


def date_text(milliseconds: int) -> str | None:
    """Give a date as ISO 8601; None before 1970 and after 9999, where Extended JSON has numbers."""
    if not 0 <= milliseconds <= _LAST_YEAR_MS:
        return None
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second_text(seconds)}.{rest:03d}Z" if rest else f"{_second_text(seconds)}Z"


@lru_cache(maxsize=4096)
def _second_text(seconds: int) -> str:
    """Give the part of a date that events share which come together."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def _relaxed_date(value: DatetimeMS) -> Any:
    text = date_text(int(value))
    return _canonical_date(value) if text is None else {"$date": text}


def _canonical_date(value: DatetimeMS) -> Any:
    return {"$date": {"$numberLong": str(int(value))}}


def _relaxed_float(value: float) -> Any:
    return value if math.isfinite(value) else {"$numberDouble": _canonical_float(value)}


def _canonical_float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _binary(value: bytes) -> Any:
    return {"$binary": {"base64": base64.b64encode(value).decode(), "subType": f"{_subtype(value):02x}"}}


def _subtype(value: bytes) -> int:
    return value.subtype if isinstance(value, Binary) else 0


def _regex(value: Regex[Any]) -> Any:
    return json_util.default(value, json_util.RELAXED_JSON_OPTIONS)


def _code(value: Code, table: _Table) -> Any:
    if value.scope is None:
        return {"$code": str(value)}
    return {"$code": str(value), "$scope": _convert(dict(value.scope), table)}


def decimal_text(value: Decimal128) -> str:
    """Give a decimal as text; EventUnconvertible for bytes that are no decimal which Python can hold."""
    try:
        return str(value)
    except ArithmeticError as error:
        raise EventUnconvertible(f"a decimal cannot be written: {type(error).__name__}") from error


def _same(value: Any) -> Any:
    return value


# --- whole documents, value by value

_Table = Mapping[type, Callable[[Any], Any]]


def _convert(value: Any, table: _Table) -> Any:
    """Replace every value that JSON lacks; documents and lists keep their order."""
    kind = type(value)
    if kind is dict:
        return {name: _convert(inner, table) for name, inner in value.items()}
    if kind is list:
        return [_convert(inner, table) for inner in value]
    try:
        return table[kind](value)
    except KeyError:
        raise EventUnconvertible(f"{kind.__name__} is not a type of BSON") from None


def _table(**spelling: Callable[[Any], Any]) -> dict[type, Callable[[Any], Any]]:
    """Build the table of a spelling from what differs between them."""
    table: dict[type, Callable[[Any], Any]] = {
        str: _same,
        bool: _same,
        type(None): _same,
        int: spelling["int32"],
        Int64: spelling["int64"],
        float: spelling["double"],
        DatetimeMS: spelling["date"],
        Regex: spelling["regex"],
        bytes: spelling["binary"],
        Binary: spelling["binary"],
        ObjectId: lambda value: {"$oid": value.binary.hex()},
        Timestamp: lambda value: {"$timestamp": {"t": value.time, "i": value.inc}},
        Decimal128: lambda value: {"$numberDecimal": decimal_text(value)},
        MinKey: lambda value: {"$minKey": 1},
        MaxKey: lambda value: {"$maxKey": 1},
    }
    table[DBRef] = lambda value: _convert(dict(value.as_doc()), table)
    table[Code] = lambda value: _code(value, table)
    return table


def _number_long(value: int) -> Any:
    return {"$numberLong": str(value)}


_RELAXED: Final = _table(
    int32=_same, int64=int, double=_relaxed_float, date=_relaxed_date, binary=_binary, regex=_regex
)
_CANONICAL: Final = _table(
    int32=lambda value: {"$numberInt": str(value)},
    int64=_number_long,
    double=lambda value: {"$numberDouble": _canonical_float(value)},
    date=_canonical_date,
    binary=_binary,
    regex=_regex,
)
