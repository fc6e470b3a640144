"""Frames of the MongoDB wire protocol: OP_MSG, OP_COMPRESSED around it, and the OP_QUERY that old handshakes use.

A frame that is not well-formed raises `BadFrame`: its sender is dropped, because nothing after it can be trusted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from tailrace import raw
from tailrace.errors import BadFrame, BsonMalformed
from tailrace.gateway.checksum import MAX_CHECKED, crc32c
from tailrace.gateway.compression import COMPRESSORS, Compressor

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
_HEADER = Struct("<iiii")
HEADER_SIZE: Final = _HEADER.size
_FLAGS = Struct("<I")
_NO_FLAGS: Final = _FLAGS.pack(0) + b"\x00"
"""What stands before the body of an OP_MSG."""
_COMPRESSED = Struct("<iiB")
_REPLY = Struct("<iqii")
_request_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Message:
    """A command or a reply: its body, and the document sequences beside it as they came."""

    body: bytes
    request_id: int = 0
    response_to: int = 0
    flags: int = 0
    sequences: bytes = b""
    """Sections of kind 1, with their kind bytes."""
    compressor: Compressor | None = None
    """How the other side packed it, and so how it wants the answer."""
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

    def to_upstream(self) -> bytes:
        """Give the frame for a server: plain OP_MSG, and one reply for one command."""
        flags = self.flags & ~(EXHAUST_ALLOWED | CHECKSUM_PRESENT)
        return _frame(self.request_id, 0, OP_MSG, _FLAGS.pack(flags) + b"\x00" + self.body + self.sequences)

    def reply(self, body: bytes) -> bytes:
        """Give the frame that answers this message."""
        return b"".join(self.reply_parts((body,)))

    def reply_parts(self, body: Sequence[bytes]) -> Sequence[bytes]:
        """Give that frame in parts: those of the body are not copied, for others may send the same ones."""
        request_id = next(_request_ids) & 0x7FFFFFFF
        if self.legacy_database is not None:
            return _head(request_id, self.request_id, OP_REPLY, _REPLY.pack(8, 0, 0, 1), body), *body
        if self.compressor is None:
            return _head(request_id, self.request_id, OP_MSG, _NO_FLAGS, body), *body
        payload = b"".join((_NO_FLAGS, *body))
        packed = self.compressor.compress(payload)
        size = _COMPRESSED.pack(OP_MSG, len(payload), self.compressor.number)
        return _head(request_id, self.request_id, OP_COMPRESSED, size, (packed,)), packed


def _head(request_id: int, response_to: int, opcode: int, begin: bytes, body: Sequence[bytes]) -> bytes:
    """Give how a frame begins, up to its body."""
    length = HEADER_SIZE + len(begin) + sum(map(len, body))
    return _HEADER.pack(length, request_id, response_to, opcode) + begin


def _frame(request_id: int, response_to: int, opcode: int, payload: bytes) -> bytes:
    return _HEADER.pack(16 + len(payload), request_id, response_to, opcode) + payload


def read_header(frame: bytes, largest: int = MAX_MESSAGE) -> tuple[int, int, int, int]:
    """Read how a frame begins: its length, its own number, the number it answers, and what kind it is."""
    length, request_id, response_to, opcode = _HEADER.unpack_from(frame)
    if not HEADER_SIZE < length <= largest:
        raise BadFrame(f"a frame of {length} bytes, where {largest} are the most")
    return length, request_id, response_to, opcode


async def read_message(
    reader: asyncio.StreamReader, *, seconds: float, first_seconds: float | None = None
) -> Message | None:
    """Read the next message; None when the other side has gone.

    The first byte may take `first_seconds` (for ever, when None); once it has come, the whole must within `seconds`.
    """
    try:
        async with asyncio.timeout(first_seconds):
            start = await reader.readexactly(1)
        async with asyncio.timeout(seconds):
            length, request_id, response_to, opcode = read_header(start + await reader.readexactly(15))
            payload = await reader.readexactly(length - HEADER_SIZE)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except TimeoutError:
        raise BadFrame(f"a message that did not arrive within {seconds:g} s") from None
    return parse(payload, opcode, request_id, response_to)


def message_in(frame: bytes) -> Message:
    """Read a whole frame, its header included."""
    _, request_id, response_to, opcode = read_header(frame)
    return parse(frame[HEADER_SIZE:], opcode, request_id, response_to)


def unpacked_size(frame: bytes) -> int:
    """Tell what a compressed frame says that it will be unpacked, and 0 for all others."""
    if read_header(frame)[3] != OP_COMPRESSED or len(frame) < HEADER_SIZE + _COMPRESSED.size:
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
    content = unpack(payload[_COMPRESSED.size :], size)
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
    position, body, sequences = 4, b"", []
    while position < end:
        kind, start = payload[position], position + 1
        if kind == 0:
            position = raw.document_end(payload, start)
            if body:
                raise BadFrame("an OP_MSG with two bodies")
            body = payload[start:position]
        elif kind == 1:
            position = start + raw.int32_at(payload, start)
            if position <= start + 4:
                raise BadFrame("a document sequence with a wrong length")
            sequences.append(payload[start - 1 : position])
        else:
            raise BadFrame(f"an OP_MSG section of kind {kind}")
    if position != end or not body:
        raise BadFrame("an OP_MSG whose sections do not fit its length")
    return Message(body, request_id, response_to, flags, b"".join(sequences))


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
        raise BadFrame("a legacy query that is no command")
    start = end + 9
    body = payload[start : raw.document_end(payload, start)]
    return Message(body, request_id, legacy_database=namespace.removesuffix(b".$cmd").decode("utf-8", "replace"))
