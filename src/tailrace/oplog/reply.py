"""Slice the documents out of a cursor's reply, which is one piece of bytes."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tailrace import raw
from tailrace.errors import BsonMalformed

_int32_at = Struct("<i").unpack_from


class CursorReply(NamedTuple):
    """A batch, and the cursor to ask for the next one; 0 when there is none any more."""

    cursor_id: int
    entries: list[bytes]


def read_batch(reply: bytes) -> CursorReply:
    """Slice the entries out of the reply to `find` or `getMore`."""
    cursor = raw.find(reply, b"cursor")
    if cursor is None:
        raise BsonMalformed("a reply has no cursor", offset=0)
    number = raw.find(reply, b"id", cursor[1])
    batch = raw.find(reply, b"nextBatch", cursor[1]) or raw.find(reply, b"firstBatch", cursor[1])
    if number is None or batch is None:
        raise BsonMalformed("a cursor has no batch", offset=cursor[1])
    return CursorReply(raw.int64_at(reply, number[1]), slice_documents(reply, batch[1]))


def slice_documents(reply: bytes, start: int) -> list[bytes]:
    """Cut an array of documents into its documents.

    The server wrote the array, so each element is a type byte, a number, a zero byte and a document;
    a length that leads elsewhere ends in an error, because the walk must meet the end exactly.
    """
    last = raw.document_end(reply, start) - 1
    found: list[bytes] = []
    add, find = found.append, reply.find
    position = start + 4
    while position < last:
        begin = find(0, position, last) + 1
        if begin == 0 or reply[position] != raw.DOCUMENT or begin + 5 > last:
            raise BsonMalformed("a batch holds something else than documents", offset=position)
        position = begin + max(_int32_at(reply, begin)[0], 5)
        add(reply[begin:position])
    if position != last:
        raise BsonMalformed("the last document of a batch is cut", offset=start)
    return found
