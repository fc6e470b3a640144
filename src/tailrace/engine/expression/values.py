"""The values that stages work on: one Python type for each BSON type, documents decoded when touched.

    double float · string str · document Document · array list · binary Binary · undefined UNDEFINED ·
    ObjectId · bool · date Date · null None · regex Regex · DBPointer · code Code · symbol Symbol ·
    code with scope CodeWithScope · int32 int · timestamp Timestamp · int64 Int64 · decimal Decimal128 ·
    MinKey · MaxKey, and MISSING for a field that is not there.

`type(value)` therefore tells the BSON type, and what goes in comes out byte for byte. Field names stay
bytes: they are only compared and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Any, Final, NoReturn, TypeAlias

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.engine.expression.failures import fail
from tailrace.engine.expression.meter import check_time
from tailrace.raw.bson_types import TYPE_NAMES
from tailrace.raw.decimals import to_decimal


class _Absent(Enum):
    """The two values that stand for nothing and are not null."""

    MISSING = "missing"


class _Undefined(Enum):
    """The deprecated BSON type without a value."""

    UNDEFINED = "undefined"


MISSING: Final = _Absent.MISSING
UNDEFINED: Final = _Undefined.UNDEFINED
MIN_KEY: Final = MinKey()
MAX_KEY: Final = MaxKey()

Value: TypeAlias = Any
"""Any of the types above. `Any`, because the operators ask for the exact type themselves."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary value; of subtype 2 the data includes the inner length."""

    subtype: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Date:
    """A date as BSON has it: milliseconds since 1970, in 64 bits."""

    millis: int


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression value: the pattern and the letters of its options."""

    pattern: str
    options: str


@dataclass(frozen=True, slots=True)
class DbPointer:
    """The deprecated reference: a namespace and an ObjectId."""

    namespace: str
    id: ObjectId


@dataclass(frozen=True, slots=True)
class Code:
    """JavaScript source."""

    source: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The deprecated second string type."""

    text: str


@dataclass(frozen=True, slots=True)
class CodeWithScope:
    """JavaScript source with the variables it sees."""

    source: str
    scope: Document


class Document:
    """A document: BSON bytes whose fields are decoded one by one, or fields that were computed.

    `_fields` maps names to values, or to spans of `_raw` that nobody looked at yet. A field that was
    removed stays as MISSING and keeps its place, as on the server: setting it again puts it back there.
    """

    __slots__ = ("_changed", "_fields", "_peeked", "_raw")

    def __init__(self, data: bytes = raw.EMPTY) -> None:
        self._raw = data
        self._fields: dict[bytes, Value] | None = None
        self._changed = False
        self._peeked = False

    @classmethod
    def of(cls, fields: dict[bytes, Value]) -> Document:
        """Make a document of computed fields; it owns the dict."""
        document = cls.__new__(cls)
        document._raw = raw.EMPTY
        document._fields = fields
        document._changed = True
        document._peeked = True
        return document

    def _index(self) -> dict[bytes, Value]:
        fields: dict[bytes, Value] = {}
        for kind, name, start, end in raw.elements(self._raw):
            # The first of two fields of the same name is the one that is seen.
            if name not in fields:
                fields[name] = (kind, start, end)
        self._fields = fields
        return fields

    def get(self, name: bytes) -> Value:
        """Give the value of a field, MISSING when there is none."""
        fields = self._fields
        if fields is None:
            if not self._peeked:
                # Many filters look at one field of a document, and at nothing else.
                self._peeked = True
                span = raw.find(self._raw, name)
                return MISSING if span is None else decode(self._raw, *span)
            fields = self._index()
        value = fields.get(name, MISSING)
        if type(value) is tuple:
            value = fields[name] = decode(self._raw, *value)
        return value

    def names(self) -> list[bytes]:
        """List the names of the fields that are there."""
        fields = self._index() if self._fields is None else self._fields
        return [name for name, value in fields.items() if value is not MISSING]

    def items(self) -> Iterator[tuple[bytes, Value]]:
        """Walk the fields that are there, in order."""
        for name in self.names():
            yield name, self.get(name)

    def copy(self) -> Document:
        """Make a document that can be changed without changing this one."""
        other = Document(self._raw)
        other._fields = dict(self._index() if self._fields is None else self._fields)
        other._changed = self._changed
        return other

    def set(self, name: bytes, value: Value) -> None:
        """Set a field in its place, or at the end; setting MISSING removes it but keeps the place."""
        fields = self._index() if self._fields is None else self._fields
        fields[name] = value
        self._changed = True

    def to_bytes(self) -> bytes:
        """Give the document as BSON."""
        if not self._changed or self._fields is None:
            return self._raw
        source = self._raw
        parts, size = [], 0
        for name, value in self._fields.items():
            if type(value) is tuple:
                kind, start, end = value
                part = b"%c%b\x00%b" % (kind, name, source[start:end])
            else:
                part = encode_element(name, value)
            parts.append(part)
            size += len(part)
            if size > _MAX_BUFFER:
                _buffer_is_full(size)
        return raw.document(*parts)


_ELEMENTS_BETWEEN_CHECKS: Final = 0x3F
_MAX_BUFFER: Final = 64 * 1024 * 1024
_int32 = Struct("<i")
_double = Struct("<d")
_int64 = Struct("<q")


def text_of(data: bytes) -> str:
    """Give the string of bytes; those that are not UTF-8 leave as they came."""
    return data.decode("utf-8", "surrogateescape")


def utf8(text: str) -> bytes:
    """Give the bytes of a string."""
    return text.encode("utf-8", "surrogateescape")


def _read_regex(doc: bytes, start: int, end: int) -> Regex:
    middle = doc.index(0, start)
    return Regex(text_of(doc[start:middle]), text_of(doc[middle + 1 : end - 1]))


def _read_code_with_scope(doc: bytes, start: int, end: int) -> CodeWithScope:
    scope = raw.value_end(doc, raw.STRING, start + 4, end)
    return CodeWithScope(text_of(doc[start + 8 : scope - 1]), Document(doc[scope:end]))


def _read_array(doc: bytes, start: int, _: int) -> list[Value]:
    return [decode(doc, kind, begin, end) for kind, _, begin, end in raw.elements(doc, start)]


_READERS: dict[int, Callable[[bytes, int, int], Value]] = {
    raw.DOUBLE: lambda doc, start, _: _double.unpack_from(doc, start)[0],
    raw.STRING: lambda doc, start, end: text_of(doc[start + 4 : end - 1]),
    raw.DOCUMENT: lambda doc, start, end: Document(doc[start:end]),
    raw.ARRAY: _read_array,
    raw.BINARY: lambda doc, start, end: Binary(doc[start + 4], doc[start + 5 : end]),
    raw.UNDEFINED: lambda *_: UNDEFINED,
    raw.OBJECT_ID: lambda doc, start, end: ObjectId(doc[start:end]),
    raw.BOOL: lambda doc, start, _: doc[start] != 0,
    raw.DATE: lambda doc, start, _: Date(_int64.unpack_from(doc, start)[0]),
    raw.NULL: lambda *_: None,
    raw.REGEX: _read_regex,
    raw.DB_POINTER: lambda doc, start, end: DbPointer(
        text_of(doc[start + 4 : end - 13]), ObjectId(doc[end - 12 : end])
    ),
    raw.CODE: lambda doc, start, end: Code(text_of(doc[start + 4 : end - 1])),
    raw.SYMBOL: lambda doc, start, end: Symbol(text_of(doc[start + 4 : end - 1])),
    raw.CODE_WITH_SCOPE: _read_code_with_scope,
    raw.INT32: lambda doc, start, _: _int32.unpack_from(doc, start)[0],
    raw.TIMESTAMP: lambda doc, start, _: raw.timestamp_at(doc, start),
    raw.INT64: lambda doc, start, _: Int64(_int64.unpack_from(doc, start)[0]),
    raw.DECIMAL128: lambda doc, start, _: Decimal128.from_bid(doc[start : start + 16]),
    raw.MAX_KEY: lambda *_: MAX_KEY,
    raw.MIN_KEY: lambda *_: MIN_KEY,
}


def decode(doc: bytes, kind: int, start: int, end: int) -> Value:
    """Decode one value; the documents inside it stay bytes."""
    return _READERS[kind](doc, start, end)


def _write_array(values: list[Value]) -> bytes:
    present = (value for value in values if value is not MISSING)
    parts, size = [], 0
    for number, value in enumerate(present):
        part = encode_element(b"%d" % number, value)
        parts.append(part)
        size += len(part)
        if size > _MAX_BUFFER:
            _buffer_is_full(size)
        if not number & _ELEMENTS_BETWEEN_CHECKS:
            check_time()
    return raw.document(*parts)


def _buffer_is_full(size: int) -> NoReturn:
    """Refuse to write what servers have no buffer for: a small value may refer to another one a million times."""
    fail(13548, f"BufBuilder attempted to grow() to {size} bytes, past the 64MB limit.")


def _write_code_with_scope(value: CodeWithScope) -> bytes:
    body = raw.string(utf8(value.source)) + value.scope.to_bytes()
    return _int32.pack(len(body) + 4) + body


_WRITERS: dict[type, tuple[int, Callable[[Value], bytes]]] = {
    float: (raw.DOUBLE, _double.pack),
    str: (raw.STRING, lambda value: raw.string(utf8(value))),
    Document: (raw.DOCUMENT, Document.to_bytes),
    list: (raw.ARRAY, _write_array),
    Binary: (raw.BINARY, lambda value: raw.binary(value.subtype, value.data)),
    _Undefined: (raw.UNDEFINED, lambda _: b""),
    ObjectId: (raw.OBJECT_ID, lambda value: value.binary),
    bool: (raw.BOOL, raw.boolean),
    Date: (raw.DATE, lambda value: _int64.pack(value.millis)),
    type(None): (raw.NULL, lambda _: b""),
    Regex: (raw.REGEX, lambda value: b"%b\x00%b\x00" % (utf8(value.pattern), utf8(value.options))),
    DbPointer: (raw.DB_POINTER, lambda value: raw.string(utf8(value.namespace)) + value.id.binary),
    Code: (raw.CODE, lambda value: raw.string(utf8(value.source))),
    Symbol: (raw.SYMBOL, lambda value: raw.string(utf8(value.text))),
    CodeWithScope: (raw.CODE_WITH_SCOPE, _write_code_with_scope),
    int: (raw.INT32, _int32.pack),
    Timestamp: (raw.TIMESTAMP, raw.timestamp),
    Int64: (raw.INT64, _int64.pack),
    Decimal128: (raw.DECIMAL128, lambda value: value.bid),
    MaxKey: (raw.MAX_KEY, lambda _: b""),
    MinKey: (raw.MIN_KEY, lambda _: b""),
}
_KINDS = {kind: number for kind, (number, _) in _WRITERS.items()}


def encode_element(name: bytes, value: Value) -> bytes:
    """Give the bytes of a field, type and name included; nothing for MISSING."""
    if value is MISSING:
        return b""
    kind, write = _WRITERS[type(value)]
    return b"%c%b\x00%b" % (kind, name, write(value))


def kind_of(value: Value) -> int:
    """Give the BSON type byte of a value; 0 for MISSING."""
    return _KINDS.get(type(value), 0)


def type_name(value: Value) -> str:
    """Give MongoDB's name for the type of a value."""
    return TYPE_NAMES.get(kind_of(value), "missing")


def type_name_of_kind(kind: int) -> str:
    """Give MongoDB's name for a type byte."""
    return TYPE_NAMES.get(kind, "missing")


def is_nullish(value: Value) -> bool:
    """Say whether a value is null, undefined or missing."""
    return value is None or value is MISSING or value is UNDEFINED


_NUMBERS: Final = frozenset({int, Int64, float, Decimal128})


def is_number(value: Value) -> bool:
    """Say whether a value is of one of the four numeric types."""
    return type(value) in _NUMBERS


def expect(value: Value, kind: type, code: int, message: str) -> None:
    """Fail unless a value is of a type; the name of the type that it has ends the message."""
    if type(value) is not kind:
        fail(code, message + type_name(value))


def expect_number(value: Value, code: int, message: str) -> None:
    """Fail unless a value is a number; the name of the type that it has ends the message."""
    if not is_number(value):
        fail(code, message + type_name(value))


def truth(value: Value) -> bool:
    """Say what a value means as a condition: only false, zero and nothing are false."""
    kind = type(value)
    if kind is bool or kind is int or kind is Int64 or kind is float:
        return bool(value)
    if kind is Decimal128:
        decimal = to_decimal(value)
        return bool(decimal.is_nan() or decimal != 0)
    return not is_nullish(value)
