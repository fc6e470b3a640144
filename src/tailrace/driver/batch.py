"""Batches of events as bytes: cutting them out of a reply, and finding their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple, overload

from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.errors import BsonMalformed
from tailrace.event import token_of

_int32_at = Struct("<i").unpack_from
_LARGE_EVENT = 1 << 14
"""Bytes from which an event is copied out of the reply by itself. Smaller ones are cut out of one copy of them all:
slices of bytes cost a third of what slices of a memoryview cost."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one reply, as BSON documents.

    A batch may be empty: then `resume_token` is what it brings, a position further on.
    """

    events: Sequence[bytes]
    resume_token: bytes | None
    """Where to resume after the whole batch; None when a server without post-batch tokens had no event yet."""
    operation_time: Timestamp | None
    """The server's operation time when it answered: what the position can be compared with."""

    @property
    def tokens(self) -> list[bytes]:
        """The resume token of each event, found when asked for."""
        return [token_of(event) for event in self.events]


class UncutBatch(NamedTuple):
    """The array of events in a reply, still in one piece and where the socket put it.

    Copying and cutting take a tenth of the time that a server takes to make the batch: it is done while the next is on
    its way.
    """

    reply: bytes | memoryview
    start: int
    end: int

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.end - self.start

    def cut(self) -> list[bytes]:
        """Give the events."""
        reply = self.reply
        if isinstance(reply, bytes):
            return cut_documents(reply, self.start)
        first = self.start + 7  # behind the array's length, a type byte and the name "0"
        if first + 4 < self.end and _int32_at(reply, first)[0] >= _LARGE_EVENT:
            return [bytes(event) for event in cut_documents(reply, self.start)]
        return cut_documents(bytes(reply), self.start)


class DecodedBatch(Sequence[bytes]):
    """The events of a small reply, decoded in one go with the rest of it; as bytes only when somebody asks.

    A single event's way from the socket to the user is shortest when nothing is copied and cut on it.
    """

    def __init__(self, documents: list[Any], payload: bytes | memoryview) -> None:
        self.documents = documents
        self._payload = payload
        self._events: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.documents)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if self._events is None:
            reply = bytes(self._payload)
            found = raw.find_path(reply, b"cursor", b"nextBatch")
            self._events = [] if found is None else cut_documents(reply, found[1])
        return self._events[index]


@overload
def cut_documents(data: bytes, start: int) -> list[bytes]: ...
@overload
def cut_documents(data: memoryview, start: int) -> list[memoryview]: ...
def cut_documents(data: bytes | memoryview, start: int) -> list[bytes] | list[memoryview]:
    """Cut the documents out of the array that begins at `start`.

    Element names are 0, 1, 2, ...: their length follows from the position, so nothing is searched for.
    """
    last = raw.document_end(data, start) - 1
    documents: list[Any] = []
    append = documents.append
    position = start + 4
    prefix, names = 3, 10  # type byte, digit, zero byte: so it is for ten elements
    while position < last:
        for _ in range(names):
            begin = position + prefix
            size = _int32_at(data, begin)[0]
            if size < 5:
                raise BsonMalformed(f"a document cannot have length {size}", offset=begin)
            position = begin + size
            append(data[begin:position])
            if position >= last:
                break
        names = 9 * names if prefix == 3 else 10 * names
        prefix += 1
    if position != last:
        raise BsonMalformed("a batch does not end where its length says", offset=start)
    return documents
