"""What travels between the stages."""

from __future__ import annotations

from binascii import unhexlify
from struct import Struct
from typing import Final, NamedTuple, Protocol

from tailrace import raw
from tailrace.oplog.entry import OplogEntry
from tailrace.token.resume_token import ResumeToken

_ID_FIRST: Final = b"\x03_id\x00"
_DATA_FIRST: Final = b"\x02_data\x00"
"""How nearly all events begin, so that a merge need not walk them."""
NEW_SHARD: Final = "kNewShardDetected"
"""The operation type by which shards tell a router of each other; no client sees it."""
_int32_at = Struct("<i").unpack_from


class Change(NamedTuple):
    """One operation that is to become an event: an entry, or a part of a committed transaction."""

    operation: OplogEntry
    time: int
    """Cluster time: that of the entry, or of the commit."""
    wall: bytes | None
    """The 8 bytes of the primary's wall clock."""
    session: bytes = b""
    """The elements `txnNumber` and `lsid` of a transaction's events."""
    number: int = 0
    """Number of the operation in its transaction."""
    logged_at: int = 0
    """Time of the entry that logged the operation, for its stored pre-image."""
    logged_number: int = 0
    """Number of the operation in that entry."""


class Event(NamedTuple):
    """A change event: its BSON bytes, and the header nobody has to decode for."""

    raw: bytes
    cluster_time: int
    """Seconds in the high 32 bits, increment in the low ones."""
    namespace: bytes
    """`database.collection`; `database` alone for dropDatabase; empty for invalidate."""
    operation_type: str
    change: Change | None = None
    """What the event was made of, for stages that look up more; not all events have it."""

    @property
    def token(self) -> bytes:
        """The resume token: the document in `_id`, which no stage may change."""
        found = raw.field(self.raw, b"_id")
        return raw.EMPTY if found is None else found.data

    @property
    def sort_key(self) -> bytes:
        """The resume token's KeyString: comparing two of them compares two positions."""
        event = self.raw
        if event[4:9] == _ID_FIRST and event[13:20] == _DATA_FIRST:
            return unhexlify(event[24 : 23 + _int32_at(event, 20)[0]])
        return ResumeToken.parse(self.token).key


class Stage(Protocol):
    """Anything events can be pulled from. None means: nothing now, ask again later."""

    def __next__(self) -> Event | None: ...
