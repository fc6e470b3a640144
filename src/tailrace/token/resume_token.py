"""Resume tokens: where a change stream is, in bytes that compare as the positions do.

A token is a KeyString of a few header values (time, version, kind, index in the transaction, whether it
is an invalidate) and, for an event, the collection's UUID and what identifies the event. Version 0 is of
3.6 and 4.0, version 1 of 4.2 to 6.0, version 2 of 7.0 (6.0 makes it on demand). Errors have the codes and
the first words of the server's own, because clients look at them.
"""

from __future__ import annotations

from binascii import Error as HexError
from binascii import unhexlify
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

import bson
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.errors import InvalidResumeToken
from tailrace.raw import Value
from tailrace.raw.cluster_time import ClusterTime
from tailrace.raw.display import decode_for_display
from tailrace.token import keystring

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NEWEST_VERSION: Final = 2
_UUID_SUBTYPE: Final = 4
_LONGEST_MARK: Final = 16
"""Bytes; the token of an event has those of its collection's UUID alone."""
# Operations whose version 1 token holds the bare documentKey; others name themselves in it.
_CLASSIC_OPERATIONS: Final = frozenset(
    {
        b"insert", b"update", b"replace", b"delete", b"drop", b"rename", b"dropDatabase",
        b"invalidate", b"kNewShardDetected", b"migrateChunkToNewShard", b"reshardBegin",
        b"reshardDoneCatchUp",
    }
)  # fmt: skip


class TokenKind(IntEnum):
    """What a token stands for; a high-water mark sorts before the events of its time."""

    HIGH_WATER_MARK = 0
    EVENT = 128


@dataclass(frozen=True, slots=True)
class TokenData:
    """What is inside a token."""

    cluster_time: Timestamp
    version: int = 1
    kind: TokenKind = TokenKind.EVENT
    txn_op_index: int = 0
    from_invalidate: bool = False
    uuid: bytes | None = None
    event_identifier: bytes | None = None
    """A BSON document: the documentKey, or the operation with its key or description."""
    fragment: int | None = None
    """Which part of a split event, from 0."""

    @property
    def is_high_water_mark(self) -> bool:
        """Whether this is a bare time, as an empty batch gives it."""
        return self == TokenData(self.cluster_time, self.version, TokenKind.HIGH_WATER_MARK)


def event_identifier(
    version: int, operation: bytes, document_key: bytes | None, description: bytes | None = None
) -> bytes | None:
    """Make the document that tells an event from others of the same time and collection."""
    if version < 2 and operation in _CLASSIC_OPERATIONS:
        return document_key
    parts = [raw.element(raw.STRING, b"operationType", raw.string(operation))]
    if document_key is not None:
        parts.append(raw.element(raw.DOCUMENT, b"documentKey", document_key))
    elif description is not None:
        parts.append(raw.element(raw.DOCUMENT, b"operationDescription", description))
    return raw.document(*parts)


@dataclass(frozen=True, slots=True, eq=False)
class ResumeToken:
    """A position in a change stream: an event's token, or a bare high-water mark.

    `key` is the sort key: tokens compare as their keys do, and their type bits take no part.
    """

    key: bytes
    type_bits: bytes = b""

    # --- making

    @classmethod
    def encode(cls, data: TokenData) -> ResumeToken:
        """Make a token of its parts."""
        return cls(*keystring.encode(list(_values(data))))

    @classmethod
    def high_water_mark(cls, time: Timestamp, version: int = 1) -> ResumeToken:
        """Make a token that stands just before the events of a time."""
        if version == 0:
            raise InvalidResumeToken("version 0 has no high-water marks", server_code=50795)
        head = b"\x82" + time.time.to_bytes(4, "big") + time.inc.to_bytes(4, "big")
        return cls(head + (b"\x2b\x02\x29\x29\x6e\x04" if version == 1 else b"\x2b\x04\x29\x29\x6e\x14\x04"))

    @classmethod
    def from_hex(cls, text: str | bytes, type_bits: bytes = b"") -> ResumeToken:
        """Read the `_data` of a token, in upper or lower case."""
        try:
            return cls(unhexlify(text), type_bits)
        except (HexError, ValueError):
            raise InvalidResumeToken("resume token string was not a valid hex string", server_code=9) from None

    @classmethod
    def parse(cls, token: bytes | Mapping[str, Any]) -> ResumeToken:
        """Read a token document, as BSON bytes or decoded; unknown fields are not looked at."""
        doc = token if isinstance(token, bytes) else bson.encode(token)
        data, bits = raw.field(doc, b"_data"), raw.field(doc, b"_typeBits")
        if data is None or data.kind != raw.STRING:
            raise InvalidResumeToken(
                f"Bad resume token: _data of missing or of wrong type. Expected string, got {_shown(doc)}",
                server_code=40647,
            )
        if bits is None:
            return cls.from_hex(raw.string_at(data.data))
        if bits.kind != raw.BINARY or raw.binary_at(bits.data)[0] != 0:
            raise InvalidResumeToken(f"Bad resume token: _typeBits of wrong type {_shown(doc)}", server_code=40648)
        return cls.from_hex(raw.string_at(data.data), raw.binary_at(bits.data)[1])

    # --- reading

    @property
    def hex(self) -> str:
        """The `_data` of the token, as servers write it; other families than MongoDB's do it in lower case."""
        return self.key.hex() if self.is_of_other_family else self.key.hex().upper()

    @property
    def cluster_time(self) -> Timestamp:
        """The time of the position, without decoding the rest."""
        if not (self.key[:1] == b"\x82" or self.is_of_other_family) or len(self.key) < 9:
            return self.decode().cluster_time
        return Timestamp(int.from_bytes(self.key[1:5], "big"), int.from_bytes(self.key[5:9], "big"))

    @property
    def time(self) -> ClusterTime:
        """The same time as a number."""
        return ClusterTime.from_timestamp(self.cluster_time)

    @property
    def is_of_other_family(self) -> bool:
        """Whether it is none of MongoDB's: Amazon DocumentDB's begin with 1, ours for Cosmos DB with 2."""
        return self.key[:1] in (b"\x01", b"\x02")

    @property
    def version(self) -> int:
        """The version of the token, without decoding the rest."""
        return {b"\x2b\x02": 1, b"\x2b\x04": 2}.get(self.key[9:11], 0)

    def to_bson(self) -> bytes:
        """Give the token's document, as it stands in the `_id` of an event."""
        data = raw.element(raw.STRING, b"_data", raw.string(self.hex))
        if not self.type_bits:
            return raw.document(data)
        bits = raw.element(raw.BINARY, b"_typeBits", raw.binary(0, self.type_bits))
        return raw.document(data, bits)

    def to_document(self) -> dict[str, Any]:
        """Give the token's document decoded, as a driver passes it around."""
        return bson.decode(self.to_bson())

    def decode(self, *, newest_version: int = NEWEST_VERSION, fragments: bool = True) -> TokenData:
        """Look inside, by the rules of a server: which versions it knows, and whether it splits events."""
        return _Decoder(keystring.decode(self.key, self.type_bits), newest_version, fragments).decode()

    # --- comparing

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, ResumeToken) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: ResumeToken) -> bool:
        return self.key < other.key

    def __le__(self, other: ResumeToken) -> bool:
        return self.key <= other.key

    def __gt__(self, other: ResumeToken) -> bool:
        return self.key > other.key

    def __ge__(self, other: ResumeToken) -> bool:
        return self.key >= other.key

    def __str__(self) -> str:
        """For logs and messages: a high-water mark whole, the token of an event up to its time.

        What follows there holds the documentKey, which is nothing for a log.
        """
        return self.hex if len(self.key) <= _LONGEST_MARK or self.is_of_other_family else f"{self.hex[:18]}..."


Position: TypeAlias = ResumeToken
"""What stores keep and streams start from: an event's token or a bare high-water mark, one type."""


def _shown(doc: bytes) -> Any:
    return raw.to_python(raw.DOCUMENT, doc)


def _values(data: TokenData) -> Iterator[Value]:
    """Give the values of a token in their order."""
    _check(data)
    yield Value(raw.TIMESTAMP, raw.timestamp(data.cluster_time))
    yield _integer(data.version)
    if data.version >= 1:
        yield _integer(data.kind)
    yield _integer(data.txn_op_index)
    if data.version >= 1:
        yield Value(raw.BOOL, raw.boolean(data.from_invalidate))
    if data.uuid is not None:
        yield Value(raw.BINARY, raw.binary(_UUID_SUBTYPE, data.uuid))
    elif data.version >= 2:
        yield Value(raw.NULL, b"")
    if data.event_identifier is not None:
        yield Value(raw.DOCUMENT, data.event_identifier)
    if data.fragment is not None:
        yield _integer(data.fragment)


def _integer(number: int) -> Value:
    return Value(raw.INT32, raw.int32(number))


def _check(data: TokenData) -> None:
    """Refuse to make a token that no server would read."""
    bare = TokenData(data.cluster_time, data.version, TokenKind.HIGH_WATER_MARK)
    if data.kind == TokenKind.HIGH_WATER_MARK and data != bare:
        raise InvalidResumeToken("Invalid high water mark token", server_code=6189505)
    identified = data.event_identifier is not None
    if data.version < 2 and identified and data.uuid is None:
        raise InvalidResumeToken("Unexpected resume token with a eventIdentifier but no UUID", server_code=50788)
    if data.version >= 2 and data.kind == TokenKind.EVENT and not identified:
        raise InvalidResumeToken("Expected an eventIdentifier for an event resume token", server_code=6189502)
    if data.version < 2 and data.fragment is not None:
        raise InvalidResumeToken(f"Tokens of version {data.version} cannot have a fragmentNum", server_code=7182504)


class _Decoder:
    """Takes the values of a token one after another, as the server does, and checks each."""

    __slots__ = ("_fragments", "_newest_version", "_values")

    def __init__(self, values: list[Value], newest_version: int, fragments: bool) -> None:
        self._values = values[::-1]
        self._newest_version = newest_version
        self._fragments = fragments

    def decode(self) -> TokenData:
        cluster_time = self._time()
        version = self._version()
        kind = self._kind() if version >= 1 else TokenKind.EVENT
        index = self._int(50793, "txnOpIndex", 50855, "Resume Token txnOpIndex is not an integer")
        _expect(index >= 0, 50794, "Invalid Resume Token: txnOpIndex should be non-negative")
        invalidate = self._invalidate() if version >= 1 else False
        if not self._values:
            _expect(version <= 1, 6189500, "Expected UUID or null")
            return TokenData(cluster_time, version, kind, index, invalidate)
        uuid = self._uuid()
        if self._newest_version >= 2:
            bare = kind == TokenKind.HIGH_WATER_MARK
            _expect(not (bare and self._values), 6189504, "Invalid high water mark token")
        if not self._values:
            _expect(
                version <= 1 or kind == TokenKind.HIGH_WATER_MARK,
                6189501,
                "Expected an eventIdentifier for an event resume token",
            )
            return TokenData(cluster_time, version, kind, index, invalidate, uuid)
        identifier = self._identifier()
        fragment = self._fragment() if version >= 2 and self._fragments else None
        _expect(not self._values, 40646, "invalid oversized resume token")
        return TokenData(cluster_time, version, kind, index, invalidate, uuid, identifier, fragment)

    def _time(self) -> Timestamp:
        _expect(bool(self._values), 40649, "invalid empty resume token")
        value = self._values.pop()
        # The server reads a date's bits as a time, and every other type as the time zero.
        timed = value.kind in (raw.TIMESTAMP, raw.DATE)
        return raw.timestamp_at(value.data) if timed else Timestamp(0, 0)

    def _int(self, missing: int, name: str, wrong: int, message: str) -> int:
        _expect(bool(self._values), missing, f"Resume Token does not contain {name}")
        value = self._values.pop()
        _expect(value.kind == raw.INT32, wrong, message)
        return raw.int32_at(value.data)

    def _version(self) -> int:
        wrong = "Invalid resume token: wrong type for version"
        version = self._int(50796, "version", 50854, wrong)
        known = "0, 1 and 2" if self._newest_version >= 2 else "0 or 1"
        message = f"Invalid Resume Token: only supports version {known}"
        _expect(0 <= version <= self._newest_version, 50795, message)
        return version

    def _kind(self) -> TokenKind:
        number = self._int(51055, "tokenType", 51056, "Resume Token tokenType is not an int.")
        _expect(number in (0, 128), 51057, f"Token type {number} not recognized")
        return TokenKind(number)

    def _invalidate(self) -> bool:
        _expect(bool(self._values), 50872, "Resume Token does not contain fromInvalidate")
        value = self._values.pop()
        _expect(value.kind == raw.BOOL, 50870, "Resume Token fromInvalidate is not a boolean.")
        return value.data != b"\x00"

    def _uuid(self) -> bytes | None:
        value = self._values.pop()
        if value.kind == raw.NULL and self._newest_version >= 2:
            return None
        is_uuid = value.kind == raw.BINARY and value.data[4] == _UUID_SUBTYPE and len(value.data) == 21
        _expect(is_uuid, 207, "UUID must be a 16-byte binary field with UUID (4) subtype")
        return value.data[5:]

    def _identifier(self) -> bytes:
        value = self._values.pop()
        message = "Resume Token eventIdentifier is not an object"
        _expect(value.kind == raw.DOCUMENT, 6189503, message)
        return value.data

    def _fragment(self) -> int | None:
        if not self._values:
            return None
        value = self._values.pop()
        number = raw.int32_at(value.data) if value.kind == raw.INT32 else -1
        message = "Resume token 'fragmentNum' must be a non-negative integer."
        _expect(number >= 0, 7182501, message)
        return number


def _expect(condition: bool, server_code: int, message: str) -> None:
    if not condition:
        raise InvalidResumeToken(message, server_code=server_code)


def describe(data: TokenData) -> dict[str, Any]:
    """Give the parts of a token by MongoDB's names, without those it does not have."""
    time = data.cluster_time
    described: dict[str, Any] = {
        "tokenType": data.kind.name.lower().replace("_", " "),
        "clusterTime": time,
        "date": datetime.fromtimestamp(time.time, UTC).isoformat().replace("+00:00", "Z"),
        "version": data.version,
        "txnOpIndex": data.txn_op_index,
        "fromInvalidate": data.from_invalidate,
    }
    if data.uuid is not None:
        described["uuid"] = str(UUID(bytes=data.uuid))
    if data.event_identifier is not None:
        described["eventIdentifier"] = decode_for_display(data.event_identifier)
    if data.fragment is not None:
        described["fragmentNum"] = data.fragment
    return described
