"""A record: what formats make of events and sinks deliver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, overload

from tailrace.event import token_of
from tailrace.raw.cluster_time import ClusterTime

_OVERHEAD = 64
"""Bytes that a record takes in a buffer beyond its key and value, about."""


class Record(NamedTuple):
    """One message for a sink. It knows its namespace, and nothing of topics, files or URLs.

    A tuple, because one is made for every event: a frozen dataclass takes four times as long to make.
    """

    key: bytes | None
    value: bytes | None
    """None is a tombstone: the key is gone."""
    headers: list[tuple[str, bytes]]
    """A list, because that is what Kafka's client takes as it is."""
    namespace: str
    """`db.coll`, or `db` for an event of a whole database."""
    operation: str
    """operationType of the event; `read` for a document of a snapshot."""
    event: bytes
    """The BSON event it was made of, for dead letters."""

    @property
    def size(self) -> int:
        """Bytes that it takes in a buffer."""
        return len(self.key or b"") + len(self.value or b"") + len(self.event) + _OVERHEAD

    @property
    def token(self) -> bytes:
        """The event's resume token as a BSON document."""
        return token_of(self.event)

    @property
    def cluster_time(self) -> ClusterTime:
        """When it happened."""
        return ClusterTime.from_text(dict(self.headers)["clusterTime"])


class BatchSummary(NamedTuple):
    """What is counted of a batch of records as a whole."""

    kinds: Counter[tuple[str, str]]
    """Records by operation and namespace."""
    key_bytes: int
    value_bytes: int
    event_bytes: int
    """An event counts for each of its records."""

    @property
    def namespaces(self) -> set[str]:
        """The namespaces that records are of."""
        return {namespace for _, namespace in self.kinds}


class CompiledRecords(Sequence[Record]):
    """The records of a batch inside the compiled kernel; a `Record` is made for who looks at it."""

    __slots__ = ("compiled", "largest", "summary")

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        """The kernel's `RecordBatch`, for a sink that hands it over as it is."""
        self.largest: int
        *sizes, self.largest = compiled.sizes()
        """The bytes of key, value and token of the largest record."""
        self.summary = BatchSummary(Counter(compiled.kinds()), *sizes)

    def __len__(self) -> int:
        return len(self.compiled)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.compiled.records())

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...
    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        found: Record | list[Record] = list(self)[at] if isinstance(at, slice) else self.compiled[range(len(self))[at]]
        return found


_kind = itemgetter(4, 3)


def summary_of(records: Sequence[Record]) -> BatchSummary:
    """Count the records of a batch; the kernel has done so for its own."""
    if isinstance(records, CompiledRecords):
        return records.summary
    return BatchSummary(
        Counter(map(_kind, records)),
        sum([len(record[0] or b"") for record in records]),
        sum([len(record[1] or b"") for record in records]),
        sum([len(record[5]) for record in records]),
    )
