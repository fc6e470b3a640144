"""What travels between the stages."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, overload

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.oplog.entry import OplogEntry
from tailrace.raw import Value
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


DOCUMENT_TYPES: Final = ("insert", "update", "replace", "delete")
"""The types of events about documents, by the numbers that the kernel has for them."""


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


class EventColumns(Sequence[Event]):
    """Events about documents as the kernel gives them, column by column; an `Event` is made for who looks at it."""

    __slots__ = ("_kinds", "_names", "_namespaces", "_times", "raws", "size")

    def __init__(self, columns: tuple[list[bytes], bytes, bytes, bytes, int], names: Sequence[bytes]) -> None:
        """Take the bytes of events, packed their times, the numbers of their namespaces and types, and their size."""
        self.raws, times, namespaces, self._kinds, self.size = columns
        self._times = memoryview(times).cast("Q")
        self._namespaces = memoryview(namespaces).cast("I")
        self._names = names

    def __len__(self) -> int:
        return len(self.raws)

    def __iter__(self) -> Iterator[Event]:
        names = map(self._names.__getitem__, self._namespaces)
        types = map(DOCUMENT_TYPES.__getitem__, self._kinds)
        return map(_new_event, zip(self.raws, self._times, names, types, repeat(None), strict=False))

    @overload
    def __getitem__(self, at: int) -> Event: ...
    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...
    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        if isinstance(at, slice):
            return list(self)[at]
        name, kind = self._names[self._namespaces[at]], DOCUMENT_TYPES[self._kinds[at]]
        return Event(self.raws[at], self._times[at], name, kind)

    @property
    def namespaces(self) -> set[bytes]:
        """The namespaces that events here are of."""
        return {self._names[number] for number in set(self._namespaces)}


_new_event = partial(tuple.__new__, Event)
Events = list[Event] | EventColumns
"""A batch of events."""


class AddSortKey:
    """Puts the token behind the event's own fields, where no user's stage can touch it."""

    def __init__(self, dialect: Dialect) -> None:
        self._as_array = dialect.sort_key_is_array

    def __call__(self, events: list[Event], given: list[Event]) -> None:
        """Give each event its key."""
        given += [event._replace(raw=self._with_key(event)) for event in events]

    def _with_key(self, event: Event) -> bytes:
        if self._as_array:
            key = raw.array([Value(raw.DOCUMENT, event.token)])
            return raw.append(event.raw, raw.element(raw.ARRAY, b"$sortKey", key))
        return raw.append(event.raw, raw.element(raw.DOCUMENT, b"$sortKey", event.token))


Stage: TypeAlias = Callable[[list[Event], list[Event]], None]
"""Takes events, and appends what becomes of them to the second list; when it raises, that is what came before."""


def run_stages(stages: Sequence[Stage], events: list[Event]) -> tuple[list[Event], Exception | None]:
    """Run a batch through stages: what they give, and the error that is met behind it.

    A later stage sees only events that stand before an earlier stage's error, so its own error comes first.
    """
    error: Exception | None = None
    for stage in stages:
        given: list[Event] = []
        try:
            stage(events, given)
        except Exception as raised:
            error = raised
        events = given
    return events, error
