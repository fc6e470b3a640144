"""Slice the documents out of a cursor's reply, which is one piece of bytes."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from tailrace import raw
from tailrace.errors import BsonMalformed

_int32_at = Struct("<i").unpack_from


class CursorReply(NamedTuple):
    """A batch, and the cursor to ask for the next one; 0 when there is none any more."""

    cursor_id: int
    entries: list[bytes]
    operation_time: int
    """How far the server was when it answered; 0 when it does not say."""


def read_batch(reply: bytes) -> CursorReply:
    """Slice the entries out of the reply to `find` or `getMore`."""
    cursor = raw.find(reply, b"cursor")
    if cursor is None:
        raise BsonMalformed("a reply has no cursor", offset=0)
    number = raw.find(reply, b"id", cursor[1])
    batch = raw.find(reply, b"nextBatch", cursor[1]) or raw.find(reply, b"firstBatch", cursor[1])
    if number is None or batch is None:
        raise BsonMalformed("a cursor has no batch", offset=cursor[1])
    entries = slice_documents(reply, batch[1])
    return CursorReply(raw.int64_at(reply, number[1]), entries, time_in(reply, b"operationTime") or 0)


def time_in(document: bytes, name: bytes) -> int | None:
    """Give a timestamp of a document as one number that orders as times do; None when it has none of that name."""
    span = raw.find(document, name)
    if span is None or span[0] != raw.TIMESTAMP:
        return None
    return raw.int64_at(document, span[1]) & 0xFFFFFFFFFFFFFFFF


def slice_documents(reply: bytes, start: int) -> list[bytes]:
    """Cut an array of documents into its documents.

    Each element is a type byte, its number in decimal digits, a zero byte and a document, so that all elements up
    to the next power of ten have heads of the same size, and nothing has to be searched.
    """
    last = raw.document_end(reply, start) - 1
    found: list[bytes] = []
    add = found.append
    position, head, power = start + 4, 3, 10
    while position < last:
        for _ in range(power - len(found)):
            begin = position + head
            try:
                end = begin + _int32_at(reply, begin)[0]
            except StructError:
                end = begin
            if reply[position] != raw.DOCUMENT or not begin < end <= last:
                raise BsonMalformed("a batch holds something else than documents", offset=position)
            add(reply[begin:end])
            position = end
            if position == last:
                return found
        head, power = head + 1, power * 10
    return found
