"""Values in Avro's binary form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final

from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from tailrace.raw import extended_json

Write = Callable[[Any, bytearray], None]
_DOUBLE: Final = Struct("<d")


def write_long(value: int, out: bytearray) -> None:
    """Write an int or a long: zigzag, seven bits a byte."""
    left = (value << 1) ^ (value >> 63)
    while left > 0x7F:
        out.append((left & 0x7F) | 0x80)
        left >>= 7
    out.append(left)


def write_bytes(value: bytes, out: bytearray) -> None:
    """Write bytes after their length."""
    write_long(len(value), out)
    out += value


def write_text(value: Any, out: bytearray) -> None:
    """Write a string; ObjectIds are their digits."""
    write_bytes(str(value).encode(), out)


def write_other(value: Any, out: bytearray) -> None:
    """Write a value that Avro has no type for, as canonical Extended JSON."""
    write_bytes(other_text(value).encode(), out)


def other_text(value: Any) -> str:
    """Give a value as canonical Extended JSON."""
    return extended_json.canonical({"v": value})[5:-1].decode().strip()


def _write_double(value: float, out: bytearray) -> None:
    out += _DOUBLE.pack(value)


WRITERS: Final[Mapping[type, Write]] = {
    bool: lambda value, out: out.append(1 if value else 0),
    int: write_long,
    Int64: write_long,
    float: _write_double,
    str: write_text,
    bytes: write_bytes,
    Binary: write_bytes,
    DatetimeMS: lambda value, out: write_long(int(value), out),
    ObjectId: write_text,
    Decimal128: lambda value, out: write_bytes(extended_json.decimal_text(value).encode(), out),
}
"""Who writes the values of a type that has a branch of its own, or is a string in a way of its own."""
