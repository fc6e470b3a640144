"""Walk, slice and splice BSON bytes without decoding documents.

A document is `bytes`; a value is the triple `(kind, start, end)`: its BSON type byte and the slice of
the document that holds it. Nothing here copies a document to look at it, and no function builds an
object per element beyond that triple. Bytes that are not BSON raise `BsonMalformed` with the offset
of the first byte that cannot be right; every walk moves forward, so every walk ends.

The walkers check what they pass over: lengths, terminators and type bytes of one level. `validate`
checks a whole document, nested ones included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeAlias

import bson
from bson.binary import OLD_BINARY_SUBTYPE, Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.timestamp import Timestamp

from tailrace.errors import BsonMalformed

DOUBLE: Final = 0x01
STRING: Final = 0x02
DOCUMENT: Final = 0x03
ARRAY: Final = 0x04
BINARY: Final = 0x05
UNDEFINED: Final = 0x06
OBJECT_ID: Final = 0x07
BOOL: Final = 0x08
DATE: Final = 0x09
NULL: Final = 0x0A
REGEX: Final = 0x0B
DB_POINTER: Final = 0x0C
CODE: Final = 0x0D
SYMBOL: Final = 0x0E
CODE_WITH_SCOPE: Final = 0x0F
INT32: Final = 0x10
TIMESTAMP: Final = 0x11
INT64: Final = 0x12
DECIMAL128: Final = 0x13
MAX_KEY: Final = 0x7F
MIN_KEY: Final = 0xFF

EMPTY: Final = b"\x05\x00\x00\x00\x00"
"""The empty document, and the empty array."""
MAX_DEPTH: Final = 250
"""How deep `validate` follows nested documents; servers refuse documents deeper than 180."""

Span: TypeAlias = tuple[int, int, int]
"""A value in place: type byte, offset of its first byte, offset after its last."""
Element: TypeAlias = tuple[int, bytes, int, int]
"""A named value in place: type byte, name, offset of the value, offset after it."""


class Value(NamedTuple):
    """A value cut out of its document: the type byte and the bytes after the name."""

    kind: int
    data: bytes


_INT32 = Struct("<i")
_INT64 = Struct("<q")
_UINT64 = Struct("<Q")
_DOUBLE = Struct("<d")
_int32_at = _INT32.unpack_from
_pack_int32 = _INT32.pack

# Size of a value by type byte, where a type has one; the names say what the others do.
_PREFIXED, _OWN_RULE, _UNKNOWN = -1, -2, -3
_SIZES = [_UNKNOWN] * 256
for _kind, _size in {
    DOUBLE: 8, UNDEFINED: 0, OBJECT_ID: 12, BOOL: 1, DATE: 8, NULL: 0, INT32: 4, TIMESTAMP: 8,
    INT64: 8, DECIMAL128: 16, MAX_KEY: 0, MIN_KEY: 0, STRING: _PREFIXED, CODE: _PREFIXED,
    SYMBOL: _PREFIXED, DOCUMENT: _PREFIXED, ARRAY: _PREFIXED, BINARY: _PREFIXED,
    CODE_WITH_SCOPE: _PREFIXED, REGEX: _OWN_RULE, DB_POINTER: _OWN_RULE,
}.items():  # fmt: skip
    _SIZES[_kind] = _size
# A prefixed value begins with an int32: what it leaves out of the size, and its least value.
_UNCOUNTED = {STRING: 4, CODE: 4, SYMBOL: 4, BINARY: 5, DOCUMENT: 0, ARRAY: 0, CODE_WITH_SCOPE: 0}
_LEAST = {STRING: 1, CODE: 1, SYMBOL: 1, BINARY: 0, DOCUMENT: 5, ARRAY: 5, CODE_WITH_SCOPE: 14}


# --- walking


def document_end(doc: bytes | memoryview, start: int = 0) -> int:
    """Give the offset after the document that begins at `start`."""
    try:
        length: int = _int32_at(doc, start)[0]
    except StructError:
        raise BsonMalformed("the document ends inside its length", offset=start) from None
    end = start + length
    if length < 5 or end > len(doc):
        raise BsonMalformed(f"a document cannot have length {length} here", offset=start)
    if doc[end - 1]:
        raise BsonMalformed("the document does not end in a zero byte", offset=end - 1)
    return end


def value_end(doc: bytes, kind: int, start: int, limit: int | None = None) -> int:
    """Give the offset after the value of type `kind` that begins at `start`, at most `limit`."""
    if limit is None:
        limit = len(doc)
    size = _SIZES[kind] if 0 <= kind < 256 else _UNKNOWN
    if size == _PREFIXED:
        if start + 4 > limit:
            raise BsonMalformed("the value ends inside its length", offset=start)
        length: int = _int32_at(doc, start)[0]
        if length < _LEAST[kind]:
            raise BsonMalformed(f"type 0x{kind:02x} cannot have length {length}", offset=start)
        size = length + _UNCOUNTED[kind]
    elif size == _OWN_RULE:
        return _regex_end(doc, start, limit) if kind == REGEX else _pointer_end(doc, start, limit)
    elif size == _UNKNOWN:
        raise BsonMalformed(f"there is no type 0x{kind & 0xFF:02x}", offset=start)
    end = start + size
    if end > limit:
        raise BsonMalformed(f"a value of {size} bytes does not fit", offset=start)
    return end


def _regex_end(doc: bytes, start: int, limit: int) -> int:
    """Pass over a pattern and its flags, two C strings."""
    return _cstring_end(doc, _cstring_end(doc, start, limit), limit)


def _cstring_end(doc: bytes, start: int, limit: int) -> int:
    end = doc.find(0, start, limit)
    if end < 0:
        raise BsonMalformed("a name or pattern has no end", offset=start)
    return end + 1


def _pointer_end(doc: bytes, start: int, limit: int) -> int:
    """Pass over a DBPointer: a string and an ObjectId."""
    end = value_end(doc, STRING, start, limit) + 12
    if end > limit:
        raise BsonMalformed("a DBPointer does not fit", offset=start)
    return end


def elements(doc: bytes, start: int = 0) -> Iterator[Element]:
    """Walk the elements of the document (or array) that begins at `start`."""
    last = document_end(doc, start) - 1
    pos = start + 4
    sizes = _SIZES
    while pos < last:
        kind = doc[pos]
        zero = doc.find(0, pos + 1, last)
        if zero < 0:
            raise BsonMalformed("a name has no end", offset=pos + 1)
        begin = zero + 1
        size = sizes[kind]
        end = begin + size if size >= 0 else value_end(doc, kind, begin, last)
        if end > last:
            raise BsonMalformed(f"a value of {size} bytes does not fit", offset=begin)
        yield kind, doc[pos + 1 : zero], begin, end
        pos = end


def find(doc: bytes, name: bytes, start: int = 0) -> Span | None:
    """Find the first element called `name` at the top level of the document at `start`."""
    for kind, found, begin, end in elements(doc, start):
        if found == name:
            return kind, begin, end
    return None


def find_path(doc: bytes, *names: bytes, start: int = 0) -> Span | None:
    """Follow `names` through nested documents (array positions are names too)."""
    span: Span | None = (DOCUMENT, start, 0)
    for name in names:
        if span is None or span[0] not in (DOCUMENT, ARRAY):
            return None
        span = find(doc, name, span[1])
    return span


def field(doc: bytes, name: bytes, start: int = 0) -> Value | None:
    """Cut the first element called `name` out of the document at `start`."""
    span = find(doc, name, start)
    return None if span is None else Value(span[0], doc[span[1] : span[2]])


def validate(doc: bytes) -> None:
    """Check that `doc` is one whole BSON document, down to strings and booleans."""
    if document_end(doc) != len(doc):
        raise BsonMalformed("bytes follow the document", offset=document_end(doc))
    pending = [(0, 1)]
    while pending:
        start, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise BsonMalformed("documents are nested too deep", offset=start)
        for kind, _, begin, end in elements(doc, start):
            if kind in (DOCUMENT, ARRAY):
                pending.append((begin, depth + 1))
            elif kind in (STRING, CODE, SYMBOL):
                _check_string(doc, begin, end)
            elif kind == DB_POINTER:
                _check_string(doc, begin, end - 12)
            elif kind == BOOL and doc[begin] > 1:
                raise BsonMalformed("a boolean is neither 0 nor 1", offset=begin)
            elif kind == CODE_WITH_SCOPE:
                pending.append((_scope_start(doc, begin, end), depth + 1))


def _check_string(doc: bytes, begin: int, end: int) -> None:
    if doc[end - 1]:
        raise BsonMalformed("a string does not end in a zero byte", offset=end - 1)


def _scope_start(doc: bytes, begin: int, end: int) -> int:
    """Give the offset of the scope document of the code that lies at `begin`."""
    scope = value_end(doc, STRING, begin + 4, end)
    _check_string(doc, begin + 4, scope)
    if document_end(doc, scope) != end:
        raise BsonMalformed("code with scope has a wrong length", offset=begin)
    return scope


# --- building


def document(*parts: bytes) -> bytes:
    """Make a document (or array) of elements, each as `element` gives them."""
    body = b"".join(parts)
    return _pack_int32(len(body) + 5) + body + b"\x00"


def element(kind: int, name: bytes, data: bytes) -> bytes:
    """Make one element of a type byte, a name and a value's bytes."""
    return b"%c%b\x00%b" % (kind, name, data)


def array(values: list[Value]) -> bytes:
    """Make an array document of values."""
    return document(*(element(v.kind, b"%d" % i, v.data) for i, v in enumerate(values)))


def body(doc: bytes) -> bytes:
    """Cut out all elements of a document at once, to splice them into another."""
    return doc[4 : document_end(doc) - 1]


def append(doc: bytes, *parts: bytes) -> bytes:
    """Copy a document with elements added at its end."""
    return document(body(doc), *parts)


def without(doc: bytes, *names: bytes) -> bytes:
    """Copy a document without the top-level elements called so."""
    kept = []
    pos = 4
    for _, name, _, end in elements(doc):
        if name not in names:
            kept.append(doc[pos:end])
        pos = end
    return document(*kept)


def int32(number: int) -> bytes:
    """Give the bytes of an int32 value."""
    return _pack_int32(number)


def int64(number: int) -> bytes:
    """Give the bytes of an int64 value."""
    return _INT64.pack(number)


def double(number: float) -> bytes:
    """Give the bytes of a double value."""
    return _DOUBLE.pack(number)


def boolean(truth: bool) -> bytes:
    """Give the bytes of a boolean value."""
    return b"\x01" if truth else b"\x00"


def string(text: bytes | str) -> bytes:
    """Give the bytes of a string (or code, or symbol) value."""
    data = text.encode() if isinstance(text, str) else text
    return b"%b%b\x00" % (_pack_int32(len(data) + 1), data)


def binary(subtype: int, payload: bytes) -> bytes:
    """Give the bytes of a binary value; `payload` of subtype 2 includes its inner length."""
    return b"%b%c%b" % (_pack_int32(len(payload)), subtype, payload)


def timestamp(time: Timestamp) -> bytes:
    """Give the bytes of a timestamp value."""
    return _UINT64.pack(time.time << 32 | time.inc)


# --- reading scalars; the offsets are those a walker gave, so that the bytes are known to be there


def int32_at(doc: bytes, start: int = 0) -> int:
    """Read an int32 value."""
    number: int = _read(_INT32, doc, start)
    return number


def int64_at(doc: bytes, start: int = 0) -> int:
    """Read an int64 or date value (milliseconds)."""
    number: int = _read(_INT64, doc, start)
    return number


def double_at(doc: bytes, start: int = 0) -> float:
    """Read a double value."""
    number: float = _read(_DOUBLE, doc, start)
    return number


def timestamp_at(doc: bytes, start: int = 0) -> Timestamp:
    """Read a timestamp value."""
    number = time_at(doc, start)
    return Timestamp(number >> 32, number & 0xFFFFFFFF)


def time_at(doc: bytes, start: int = 0) -> int:
    """Read a timestamp value as one number that orders as times do."""
    number: int = _read(_UINT64, doc, start)
    return number


def time_in(doc: bytes, name: bytes, start: int = 0) -> int | None:
    """Give a document's timestamp of a name as `time_at` does; None when it has none."""
    span = find(doc, name, start)
    return None if span is None or span[0] != TIMESTAMP else time_at(doc, span[1])


def string_at(doc: bytes, start: int = 0) -> bytes:
    """Read a string (or code, or symbol) value as its UTF-8 bytes."""
    end = value_end(doc, STRING, start)
    _check_string(doc, start, end)
    return doc[start + 4 : end - 1]


def binary_at(doc: bytes, start: int = 0) -> tuple[int, bytes]:
    """Read a binary value: subtype and payload (of subtype 2 with its inner length)."""
    end = value_end(doc, BINARY, start)
    return doc[start + 4], doc[start + 5 : end]


def number_at(doc: bytes, kind: int, start: int = 0) -> int | float | None:
    """Read an int32, int64 or double; None for every other type."""
    if kind == INT32:
        return int32_at(doc, start)
    if kind == INT64:
        return int64_at(doc, start)
    return double_at(doc, start) if kind == DOUBLE else None


def _read(form: Struct, doc: bytes, start: int) -> Any:
    try:
        return form.unpack_from(doc, start)[0]
    except StructError:
        raise BsonMalformed(f"a value of {form.size} bytes does not fit", offset=start) from None


# --- Python objects, for literals and for people; not for data that only passes through

_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)


def to_python(kind: int, data: bytes) -> Any:
    """Decode one value as pymongo does; a symbol becomes a str, so there is not always a way back."""
    try:
        return bson.decode(document(element(kind, b"v", data)), _OPTIONS)["v"]
    except bson.InvalidBSON as error:
        raise BsonMalformed(str(error), offset=0) from error


def from_python(value: Any) -> Value:
    """Encode one Python object as pymongo does."""
    doc = encode({"v": value})
    return Value(doc[4], doc[7:-1])


def encode(fields: Mapping[str, Any]) -> bytes:
    """Encode a document as pymongo does, also with binaries of the subtype 255, which it decodes and cannot encode."""
    try:
        return bson.encode(fields)
    except SystemError:
        names = sorted(fields, key=lambda name: name != "_id")  # where pymongo puts it
        return document(*(_element(name, fields[name]) for name in names))


def _element(name: str, value: Any) -> bytes:
    kind, data = _encoded(value)
    return element(kind, name.encode(), data)


def _encoded(value: Any) -> Value:
    if isinstance(value, Mapping):
        return Value(DOCUMENT, document(*(_element(name, inner) for name, inner in value.items())))
    if isinstance(value, list | tuple):
        return Value(ARRAY, array([_encoded(inner) for inner in value]))
    if isinstance(value, Binary):
        return Value(BINARY, binary(value.subtype, _payload(value)))
    doc = bson.encode({"v": value})
    return Value(doc[4], doc[7:-1])


def _payload(value: Binary) -> bytes:
    """Give the bytes of a binary as BSON has them: the old subtype repeats their length."""
    return int32(len(value)) + value if value.subtype == OLD_BINARY_SUBTYPE else bytes(value)
