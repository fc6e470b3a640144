"""Frames of the MongoDB wire protocol: OP_MSG, OP_COMPRESSED around it, and the OP_QUERY that old handshakes use.

A frame that is not well-formed raises `BadFrame`: its sender is dropped, because nothing after it can be trusted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from tailrace import raw
from tailrace.errors import BadFrame, BsonMalformed
from tailrace.gateway.compression import COMPRESSORS, Compressor

_POLYNOMIAL: Final = 0x82F63B78
_ALL_ONES: Final = 0xFFFFFFFF
MAX_CHECKED: Final = 16 * 1024
"""Bytes of the largest message whose checksum is verified: some milliseconds."""


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(map(_table_entry, range(256)))


def crc32c(data: bytes) -> int:
    """Give the checksum of some bytes."""
    checksum, table = _ALL_ONES, _TABLE
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ _ALL_ONES


OP_REPLY: Final = 1
OP_QUERY: Final = 2004
OP_COMPRESSED: Final = 2012
OP_MSG: Final = 2013

CHECKSUM_PRESENT: Final = 1
MORE_TO_COME: Final = 1 << 1
EXHAUST_ALLOWED: Final = 1 << 16
_REQUIRED_FLAGS: Final = 0xFFFF
_KNOWN_FLAGS: Final = CHECKSUM_PRESENT | MORE_TO_COME

MAX_MESSAGE: Final = 48_000_000
MAX_SECTIONS: Final = 16
"""No command has more than two document sequences; reading millions would hold up all others."""
_HEADER = Struct("<iiii")
HEADER_SIZE: Final = _HEADER.size
_FLAGS = Struct("<I")
NO_FLAGS: Final = _FLAGS.pack(0) + b"\x00"
"""What stands before the body of an OP_MSG."""
_COMPRESSED = Struct("<iiB")
_OP_COMPRESSED: Final = OP_COMPRESSED.to_bytes(4, "little")
_REPLY = Struct("<iqii")
_request_ids = itertools.count(1)

_TWO_BODIES: Final = ("Multiple body sections in message", 40430)
_NO_BODY: Final = ("OP_MSG messages must have a body", 40587)

Parts: TypeAlias = Sequence[bytes | memoryview]
"""A frame in pieces, which leave one after the other."""


@dataclass(slots=True)
class Message:
    """A command or a reply: its body, and the document sequences beside it as they came. Nobody changes it."""

    body: bytes
    request_id: int = 0
    response_to: int = 0
    flags: int = 0
    sequences: tuple[bytes | memoryview, ...] = ()
    """Sections of kind 1, with their kind bytes, where they lie in what came."""
    compressor: Compressor | None = None
    """How the other side packed it, and so how it wants the answer."""
    refused: tuple[str, int] | None = None
    """Why a server answers it with an error, whatever is in it: the message and its code."""
    legacy_database: str | None = None
    """The database of a command that came as OP_QUERY, and so must be answered with OP_REPLY."""

    @property
    def expects_reply(self) -> bool:
        """Whether the sender waits for an answer."""
        return not self.flags & MORE_TO_COME

    def with_body(self, body: bytes) -> Message:
        """Give the same message with another body."""
        return replace(self, body=body)

    def as_modern(self) -> Message:
        """Give a legacy command with its database in the body, where OP_MSG has it."""
        database = raw.string(self.legacy_database or "")
        return self.with_body(raw.append(self.body, raw.element(raw.STRING, b"$db", database)))

    def to_upstream(self) -> Parts:
        """Give the frame for a server, in parts that are not copied: plain OP_MSG, and one reply for one command."""
        flags = self.flags & ~(EXHAUST_ALLOWED | CHECKSUM_PRESENT)
        content = self.body, *self.sequences
        return _head(self.request_id, 0, OP_MSG, _FLAGS.pack(flags) + b"\x00", size_of(content)), *content

    def reply_parts(self, body: Sequence[bytes]) -> Parts:
        """Give the frame that answers this message, in parts; those of the body, which others may send, uncopied."""
        if self.compressor is None or self.legacy_database is not None:
            return self.reply_head(size_of(body)), *body
        payload = b"".join((NO_FLAGS, *body))
        packed = self.compressor.compress(payload)
        size = _COMPRESSED.pack(OP_MSG, len(payload), self.compressor.number)
        return _head(_next_id(), self.request_id, OP_COMPRESSED, size, len(packed)), packed

    def reply_head(self, size: int) -> bytes:
        """Give how the frame of an answer begins that is not compressed, up to its body of so many bytes."""
        if self.legacy_database is not None:
            return _head(_next_id(), self.request_id, OP_REPLY, _REPLY.pack(8, 0, 0, 1), size)
        return _head(_next_id(), self.request_id, OP_MSG, NO_FLAGS, size)


def size_of(parts: Parts) -> int:
    """Give how many bytes the parts of a frame have."""
    return sum(map(len, parts))


def _next_id() -> int:
    return next(_request_ids) & 0x7FFFFFFF


def _head(request_id: int, response_to: int, opcode: int, begin: bytes, size: int) -> bytes:
    """Give how a frame begins, up to its body of so many bytes."""
    return _HEADER.pack(HEADER_SIZE + len(begin) + size, request_id, response_to, opcode) + begin


class Head(NamedTuple):
    """How a frame begins."""

    length: int
    request_id: int
    response_to: int
    opcode: int


def read_header(frame: bytes | bytearray, largest: int = MAX_MESSAGE) -> Head:
    """Read how a frame begins: its length, its own number, the number it answers, and what kind it is."""
    head = Head._make(_HEADER.unpack_from(frame))
    if not HEADER_SIZE < head.length <= largest:
        raise BadFrame(f"a frame of {head.length} bytes, where {largest} are the most")
    return head


async def read_head(reader: asyncio.StreamReader, *, seconds: float) -> Head | None:
    """Read how the next message begins; None when the other side has gone.

    The first byte may take for ever; once it has come, the others must come within `seconds`.
    """
    try:
        start = await reader.readexactly(1)
        async with asyncio.timeout(seconds):
            return read_header(start + await reader.readexactly(HEADER_SIZE - 1))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except TimeoutError:
        raise _late(seconds) from None


async def read_rest(reader: asyncio.StreamReader, head: Head, *, seconds: float) -> Message | None:
    """Read what comes behind the head of a message; None when the other side has gone."""
    try:
        async with asyncio.timeout(seconds):
            payload = await reader.readexactly(head.length - HEADER_SIZE)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except TimeoutError:
        raise _late(seconds) from None
    return parse(payload, head.opcode, head.request_id, head.response_to)


def _late(seconds: float) -> BadFrame:
    return BadFrame(f"a message that did not arrive within {seconds:g} s")


def message_in(frame: bytes) -> Message:
    """Read a whole frame, its header included; a large one comes as a bytearray, which is used up."""
    head = read_header(frame)
    return parse(_behind(frame, HEADER_SIZE), head.opcode, head.request_id, head.response_to)


def _behind(content: bytes, count: int) -> bytes:
    """Give what stands behind the first bytes, without a copy where there may be much of it."""
    whole: object = content
    if not isinstance(whole, bytearray):
        return content[count:]
    del whole[:count]  # moves where it begins, and nothing else
    return content


def unpacked_size(frame: bytes) -> int:
    """Return what a compressed frame says that it will be unpacked, and 0 for all others."""
    if frame[HEADER_SIZE - 4 : HEADER_SIZE] != _OP_COMPRESSED or len(frame) < HEADER_SIZE + _COMPRESSED.size:
        return 0
    size: int = _COMPRESSED.unpack_from(frame, HEADER_SIZE)[1]
    return max(size, 0)


def parse(payload: bytes, opcode: int, request_id: int, response_to: int = 0) -> Message:
    """Take a frame apart."""
    compressor = None
    try:
        if opcode == OP_COMPRESSED:
            opcode, payload, compressor = _unpacked(payload)
        if opcode == OP_MSG:
            message = _message(payload, request_id, response_to)
        elif opcode == OP_QUERY:
            message = _query(payload, request_id)
        else:
            raise BadFrame(f"opcode {opcode} is not spoken here")
    except BsonMalformed as error:
        raise BadFrame(error.message) from error
    return message if compressor is None else replace(message, compressor=compressor)


def _unpacked(payload: bytes) -> tuple[int, bytes, Compressor | None]:
    if len(payload) < _COMPRESSED.size:
        raise BadFrame("a compressed frame that is too short")
    opcode, size, number = _COMPRESSED.unpack_from(payload)
    compressor = COMPRESSORS.get(number)
    if compressor is None or not 0 <= size <= MAX_MESSAGE:
        raise BadFrame(f"a frame compressed by method {number} to {size} bytes")
    unpack: Callable[[bytes, int], bytes] = compressor.decompress
    content = unpack(_behind(payload, _COMPRESSED.size), size)
    if len(content) != size:
        raise BadFrame("a compressed frame with a wrong size")
    return opcode, content, compressor


def _message(payload: bytes, request_id: int, response_to: int) -> Message:
    if len(payload) < 5:
        raise BadFrame("an OP_MSG that is too short")
    (flags,) = _FLAGS.unpack_from(payload)
    if flags & _REQUIRED_FLAGS & ~_KNOWN_FLAGS:
        raise BadFrame(f"OP_MSG flags 0x{flags:x} are not known")
    end = len(payload)
    if flags & CHECKSUM_PRESENT:
        end -= 4
        _check(_HEADER.pack(HEADER_SIZE + len(payload), request_id, response_to, OP_MSG) + payload)
    position, body, sequences, refused = 4, None, [], None
    while position < end:
        kind, start = payload[position], position + 1
        if kind == 0:
            position = raw.document_end(payload, start)
            if body is not None:
                refused = _TWO_BODIES
            body = start, position
        elif kind == 1:
            position = start + raw.int32_at(payload, start)
            if position <= start + 4:
                raise BadFrame("a document sequence with a wrong length")
            sequences.append((start - 1, position))
            if len(sequences) > MAX_SECTIONS:
                raise BadFrame(f"an OP_MSG with more than {MAX_SECTIONS} document sequences")
        else:
            raise BadFrame(f"an OP_MSG section of kind {kind}")
    if position != end:
        raise BadFrame("an OP_MSG whose sections do not fit its length")
    if refused is not None or body is None:
        return Message(raw.EMPTY, request_id, response_to, flags, refused=refused or _NO_BODY)
    if sequences:
        view = memoryview(payload)
        rest = tuple(view[begin:stop] for begin, stop in sequences)
        return Message(bytes(view[body[0] : body[1]]), request_id, response_to, flags, rest)
    return Message(_behind(payload[:end] if end < len(payload) else payload, body[0]), request_id, response_to, flags)


def _check(frame: bytes) -> None:
    """Refuse a frame whose checksum is wrong; seen on 4.2.6 and 6.0.5: the server hangs up."""
    if len(frame) > MAX_CHECKED:
        raise BadFrame(f"a message of {len(frame)} bytes with a checksum, where {MAX_CHECKED} are the most")
    if crc32c(frame[:-4]) != _FLAGS.unpack_from(frame, len(frame) - 4)[0]:
        raise BadFrame("an OP_MSG whose checksum is wrong")


def _query(payload: bytes, request_id: int) -> Message:
    """Read a legacy query, which is a command when its collection is `$cmd`."""
    end = payload.find(b"\x00", 4)
    namespace = payload[4:end]
    if end < 0 or not namespace.endswith(b".$cmd"):
        raise BadFrame("a legacy query that is not a command")
    start = end + 9
    body = payload[start : raw.document_end(payload, start)]
    return Message(body, request_id, legacy_database=namespace.removesuffix(b".$cmd").decode("utf-8", "replace"))
