"""Commands on cursors and the replies to them, as plain values; events and tokens in them stay bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple, overload

from bson.timestamp import Timestamp

from tailrace import raw

LARGE_BATCH: Final = 256 * 1024
"""Bytes from which on a stream is behind, and its next batch is asked for ahead."""
_LARGE_EVENT: Final = 1 << 14
"""Bytes from which an event is copied out of the reply by itself. Smaller ones are cut out of one copy of them all:
slices of bytes cost a third of what slices of a memoryview cost."""
_int32_at = Struct("<i").unpack_from


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Open a cursor, for the first time or to resume, on a server chosen by the read preference."""

    database: str
    command: dict[str, Any]


@dataclass(frozen=True, slots=True)
class GetMore:
    """Ask the server that holds the cursor for its next batch."""

    database: str
    collection: str
    cursor_id: int
    batch_size: int | None
    max_time_ms: int | None
    comment: Any


class UncutBatch(NamedTuple):
    """The array of events in a reply, still in one piece and where the socket put it.

    Copying and cutting take a tenth of the time that a server takes to make the batch: it is done while the next is on
    its way.
    """

    reply: bytes | memoryview
    start: int
    end: int


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
            self._events = [] if found is None else raw.cut_documents(reply, found[1])
        return self._events[index]


class Reply(NamedTuple):
    """A server's answer to `Aggregate` or `GetMore`; events and tokens are BSON documents.

    A tuple, like `UncutBatch`, because it is made on the way of every single event, in a third of the time.
    """

    cursor_id: int
    namespace: str
    batch: Sequence[bytes] | UncutBatch
    post_batch_resume_token: bytes | Mapping[str, Any] | None
    operation_time: Timestamp | None
    max_wire_version: int

    @property
    def events(self) -> Sequence[bytes]:
        """The events, cut out now if they were not."""
        if not isinstance(self.batch, UncutBatch):
            return self.batch
        reply, start, end = self.batch
        if isinstance(reply, bytes):
            return raw.cut_documents(reply, start)
        first = start + 7  # behind the array's length, a type byte and the name "0"
        if first + 4 < end and _int32_at(reply, first)[0] >= _LARGE_EVENT:
            return [bytes(event) for event in raw.cut_documents(reply, start)]
        return raw.cut_documents(bytes(reply), start)

    @property
    def has_more(self) -> bool:
        """Whether the batch is so large that the stream is behind: the next getMore will not have to wait."""
        batch = self.batch
        return isinstance(batch, UncutBatch) and batch.end - batch.start >= LARGE_BATCH and self.cursor_id != 0
