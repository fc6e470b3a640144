"""What a policy does to one value: each action takes a BSON value and gives the one that stands in its place.

Values encrypted by the client (CSFLE, Queryable Encryption: binary subtype 6) are left as they are: nobody can read
them without their key, and changed they could not be decrypted any more.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tailrace import raw
from tailrace.raw import Value
from tailrace.token import keystring

ENCRYPTED_SUBTYPE: Final = 6
MASKED_TEXT: Final = "***"
_TEXTS: Final = frozenset({raw.STRING, raw.SYMBOL, raw.CODE})
_NOTHING_TO_HIDE: Final = frozenset({raw.NULL, raw.UNDEFINED, raw.MIN_KEY, raw.MAX_KEY})


class Kind(StrEnum):
    """What happens to a field, from the mildest to the strictest."""

    TRUNCATE = "truncate"
    HASH = "hash"
    MASK = "mask"
    DROP = "drop"


_STRICTNESS: Final = {kind: strictness for strictness, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of change, with what it needs to know."""

    kind: Kind
    length: int = 0
    """How many characters of a string, or bytes of a binary, `truncate` leaves."""

    def stricter(self, other: Action | None) -> Action:
        """Give the one of two actions that hides more: where rules overlap, it is the one that counts."""
        if other is None:
            return self
        return max(self, other, key=lambda each: (_STRICTNESS[each.kind], -each.length))


ValueChange = Callable[[Value], Value]
"""Gives what stands in the place of a value that is neither a document nor an array."""


def value_change(action: Action, key: bytes | None) -> ValueChange:
    """Give what an action does to a value; `drop` removes fields and has nothing to do here."""
    if action.kind is Kind.MASK:
        return _unless_encrypted(masked)
    if action.kind is Kind.TRUNCATE:
        return _unless_encrypted(lambda value: truncated(value, action.length))
    if key is None:
        raise ValueError("hashing needs a key")
    return _unless_encrypted(lambda value: hashed(value, key))


def _unless_encrypted(change: ValueChange) -> ValueChange:
    def changed(value: Value) -> Value:
        encrypted = value.kind == raw.BINARY and value.data[4] == ENCRYPTED_SUBTYPE
        return value if encrypted or value.kind in _NOTHING_TO_HIDE else change(value)

    return changed


def masked(value: Value) -> Value:
    """Give a value of the same type that says nothing."""
    return Value(value.kind, _mask_of(value))


def _mask_of(value: Value) -> bytes:
    if value.kind in (raw.STRING, raw.SYMBOL):
        return raw.string(MASKED_TEXT)
    if value.kind == raw.CODE:
        return raw.string("")
    if value.kind == raw.BINARY:
        return raw.binary(value.data[4], _MASKED_BINARY.get(value.data[4], b""))
    if value.kind == raw.REGEX:
        return b"\x00\x00"
    if value.kind == raw.DB_POINTER:
        return raw.string("") + bytes(12)
    if value.kind == raw.CODE_WITH_SCOPE:
        inside = raw.string("") + raw.EMPTY
        return raw.int32(len(inside) + 4) + inside
    if value.kind == raw.DECIMAL128:
        return _DECIMAL_ZERO
    return bytes(len(value.data))


_DECIMAL_ZERO: Final = bytes(14) + b"\x40\x30"
_MASKED_BINARY: Final = {2: raw.int32(0), 3: bytes(16), 4: bytes(16), 5: bytes(16), 9: b"\x03\x00"}
"""By subtype, where no bytes at all would be invalid: old binaries, UUIDs, MD5, vectors."""


def hashed(value: Value, key: bytes) -> Value:
    """Give the HMAC-SHA-256 of a value as 64 hexadecimal digits.

    Values that are equal to the server (5, 5.0 and NumberLong(5)) have equal hashes, in every collection, so that
    hashed fields can be joined. What is hashed is the value's KeyString without type bits, which has that property.
    """
    digest = hmac.digest(key, keystring.encode([value])[0], "sha256")
    return Value(raw.STRING, raw.string(digest.hex()))


def truncated(value: Value, length: int) -> Value:
    """Cut a string to some characters and a binary to some bytes; other values have nothing to cut."""
    if value.kind in _TEXTS:
        return Value(value.kind, raw.string(value.data[4:-1].decode("utf-8", "ignore")[:length]))
    if value.kind == raw.BINARY:
        return Value(value.kind, raw.binary(*_cut(*raw.binary_at(value.data), length)))
    return value


def _cut(subtype: int, data: bytes, length: int) -> tuple[int, bytes]:
    """Cut a binary; what is shorter than its subtype demands (a UUID has 16 bytes) becomes a plain one."""
    return (subtype, data) if len(data) <= length else (0, data[:length])
