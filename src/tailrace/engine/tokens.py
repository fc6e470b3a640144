"""Resume tokens for events, made as fast as events are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace import raw
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import keystring, numbers, type_bits
from tailrace.token.resume_token import ResumeToken, TokenData, event_identifier

_HEADS: Final = {0: b"\x29", 1: b"\x2b\x02\x2c\x01\x00", 2: b"\x2b\x04\x2c\x01\x00"}
"""Version and kind of an event's token."""
_HEADER_BITS: Final = {0: "0000", 1: "000000", 2: "000000"}
_FROM_EVENT: Final = b"\x6e"
_UUID: Final = b"\x5a\x10\x04"
_NULL: Final = b"\x14"
_OBJECT: Final = b"\x46"
_END: Final = b"\x04"


TokenVersion = Callable[[int, int], int]
"""Decides the version of an event's token by its time and its number in the transaction."""


def fixed_version(version: int) -> TokenVersion:
    """Give all tokens the same version."""
    return lambda time, number: version


def version_of_client(start: TokenData, default: int, *, by_operation: bool) -> TokenVersion:
    """Give tokens the version of the client's token until its position is passed.

    The server compares the tokens it makes with the client's, so it makes them alike. 6.0.5 does so for
    all events of the same time, 6.0.27 up to the same operation of the transaction.
    """
    last_time = ClusterTime.from_timestamp(start.cluster_time)
    last_number, client = start.txn_op_index, start.version

    def version(time: int, number: int) -> int:
        if time > last_time or (by_operation and number > last_number):
            return default
        return client

    return version


def event_token(
    version: int,
    time: int,
    number: int,
    uuid: bytes | None,
    operation_type: bytes,
    document_key: bytes | None,
    description: bytes | None = None,
) -> ResumeToken:
    """Make the token of an event."""
    bits = [_HEADER_BITS[version]]
    parts = [b"\x82", time.to_bytes(8, "big"), _HEADS[version], numbers.encode_integer(number)]
    if version:
        parts.append(_FROM_EVENT)
    if uuid is not None:
        parts += _UUID, uuid
    elif version == 2:
        parts.append(_NULL)
    identifier = event_identifier(version, operation_type, document_key, description)
    if identifier is not None:
        parts += _OBJECT, keystring.encode_body(identifier, bits)
    parts.append(_END)
    return ResumeToken(b"".join(parts), type_bits.pack("".join(bits)))


def id_element(token: ResumeToken) -> bytes:
    """Give the `_id` of an event."""
    return raw.element(raw.DOCUMENT, b"_id", token.to_bson())


def render_token(token: bytes) -> str:
    """Write a token as the server's messages do."""
    parsed = ResumeToken.parse(token)
    if not parsed.type_bits:
        return f'{{_data: "{parsed.hex}"}}'
    return f'{{_data: "{parsed.hex}", _typeBits: BinData(0, "{parsed.type_bits.hex().upper()}")}}'
