"""Frames: what goes in comes out, and what is no frame is refused, whatever its bytes."""

from __future__ import annotations

import asyncio
import struct

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine import Dialect
from tailrace.errors import BadFrame
from tailrace.gateway.command import Command
from tailrace.gateway.compression import COMPRESSORS
from tailrace.gateway.wire import (
    MAX_CHECKED,
    OP_COMPRESSED,
    OP_MSG,
    OP_QUERY,
    Message,
    crc32c,
    parse,
    read_head,
    read_rest,
)


async def _message(reader: asyncio.StreamReader, seconds: float) -> Message | None:
    head = await read_head(reader, seconds=seconds)
    return None if head is None else await read_rest(reader, head, seconds=seconds)


def read(data: bytes, **options: float) -> Message | None:
    """Read one message from bytes, after which the peer is gone."""

    async def run() -> Message | None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await _message(reader, options.get("seconds", 5))

    return asyncio.run(run())


@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=lambda method: method.name)
def test_a_reply_comes_back_as_it_went_with_each_compressor(compressor):
    body = bson.encode({"ok": 1, "text": "x" * 5_000})
    request = Message(bson.encode({"ping": 1}), request_id=7, compressor=compressor)
    reply = read(b"".join(request.reply_parts((body,))))
    assert (reply.body, reply.response_to, reply.compressor) == (body, 7, compressor)


def test_document_sequences_pass_through():
    documents = b"".join(bson.encode({"_id": number}) for number in range(3))
    name = b"documents\x00"
    section = b"\x01" + struct.pack("<i", 4 + len(name) + len(documents)) + name + documents
    payload = b"\x00\x00\x00\x00" + section + b"\x00" + bson.encode({"insert": "c", "$db": "shop"})
    message = parse(payload, OP_MSG, 1)
    command = Command.parse(message, Dialect.of("6.0.5"))
    assert (command.name, command.database, message.sequences) == ("insert", "shop", (section,))
    assert parse(b"".join(message.to_upstream())[16:], OP_MSG, 1) == message


def test_a_legacy_handshake_is_answered_in_kind():
    payload = b"\x00\x00\x00\x00admin.$cmd\x00" + struct.pack("<ii", 0, -1) + bson.encode({"isMaster": 1})
    message = parse(payload, OP_QUERY, 3)
    command = Command.parse(message, Dialect.of("6.0.5"))
    assert (command.name, command.database) == ("isMaster", "admin")
    length, _, response_to, opcode = struct.unpack_from(
        "<iiii", b"".join(message.reply_parts((bson.encode({"ok": 1}),)))
    )
    assert (length, response_to, opcode) == (36 + len(bson.encode({"ok": 1})), 3, 1)


def test_the_checksum_of_known_bytes():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


@pytest.mark.parametrize("compressor", [None, COMPRESSORS[2]])
def test_a_checksum_is_checked(compressor):
    begin = struct.pack("<I", 1) + b"\x00" + bson.encode({"ping": 1, "$db": "admin"})
    header = struct.pack("<iiii", 16 + len(begin) + 4, 9, 0, OP_MSG)
    for wrong in (0, 1):
        payload, opcode = begin + struct.pack("<I", crc32c(header + begin) ^ wrong), OP_MSG
        if compressor is not None:
            payload = struct.pack("<iiB", OP_MSG, len(payload), compressor.number) + compressor.compress(payload)
            opcode = OP_COMPRESSED
        if wrong:
            with pytest.raises(BadFrame, match="checksum"):
                parse(payload, opcode, 9)
        else:
            assert Command.parse(parse(payload, opcode, 9), Dialect.of("6.0.5")).name == "ping"


def test_a_large_message_with_a_checksum_is_refused():
    payload = struct.pack("<I", 1) + b"\x00" + bson.encode({"ping": "x" * MAX_CHECKED}) + b"\x00" * 4
    with pytest.raises(BadFrame, match="the most"):
        parse(payload, OP_MSG, 1)


BODY = b"\x00" + bson.encode({"ping": 1})


@pytest.mark.parametrize(
    ("payload", "opcode"),
    [
        (b"\x00\x00\x00\x00", OP_MSG),
        (b"\x00\x00\x00\x00" + BODY + b"\x02", OP_MSG),
        (b"\x00\x00\x00\x00" + BODY[:-1], OP_MSG),
        (b"\x04\x00\x00\x00" + BODY, OP_MSG),
        (b"\x00\x00\x00\x00\x01\x01\x00\x00\x00", OP_MSG),
        (b"\x00\x00\x00\x00\x01\xff\xff\xff\xff", OP_MSG),
        (b"\x00\x00\x00\x00a.b\x00" + b"\x00" * 8 + bson.encode({}), OP_QUERY),
        (struct.pack("<iiB", OP_MSG, 10**9, 2) + b"x", OP_COMPRESSED),
        (struct.pack("<iiB", OP_MSG, 10, 9) + b"x", OP_COMPRESSED),
        (struct.pack("<iiB", OP_MSG, 10, 2) + b"not zlib", OP_COMPRESSED),
        (struct.pack("<iiB", OP_MSG, 3, 0) + b"four", OP_COMPRESSED),
        (b"", 2001),
    ],
)
def test_what_is_no_frame_is_refused(payload, opcode):
    with pytest.raises(BadFrame):
        parse(payload, opcode, 1)


@given(st.binary(max_size=200), st.sampled_from([OP_MSG, OP_QUERY, OP_COMPRESSED, 1, 0]))
def test_any_bytes_give_a_message_or_a_refusal(payload, opcode):
    try:
        message = parse(payload, opcode, 1)
    except BadFrame:
        return
    assert message.body


@pytest.mark.parametrize("length", [-1, 0, 16, 48_000_001])
def test_a_wrong_length_is_refused_before_anything_is_read(length):
    with pytest.raises(BadFrame, match="bytes"):
        read(struct.pack("<iiii", length, 1, 0, OP_MSG) + b"x" * 100)


def test_a_peer_that_goes_away_in_the_middle_is_gone():
    frame = b"".join(Message(bson.encode({"ping": 1})).to_upstream())
    assert read(b"") is None
    assert read(frame[:10]) is None
    assert read(frame[:-1]) is None


def test_a_message_that_trickles_in_is_refused():
    async def run() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"\x20\x00")
        with pytest.raises(BadFrame, match="did not arrive"):
            await _message(reader, 0.05)

    asyncio.run(run())
