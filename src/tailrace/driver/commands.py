"""What the driver sends and what it gets back, as plain values.

The resume logic speaks only in these; the shells turn them into traffic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from bson.timestamp import Timestamp

from tailrace.driver.batch import UncutBatch

LARGE_BATCH: Final = 256 * 1024
"""Bytes from which on a stream is behind, and its next batch is asked for ahead."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is watched: one collection, one database, or the whole cluster."""

    database: str
    collection: str | None = None
    whole_cluster: bool = False

    @classmethod
    def of_collection(cls, database: str, collection: str) -> Scope:
        """All changes of one collection."""
        return cls(database, collection)

    @classmethod
    def of_database(cls, database: str) -> Scope:
        """All changes of the collections of one database."""
        return cls(database)

    @classmethod
    def of_cluster(cls) -> Scope:
        """All changes of all databases but admin, config and local; asked of `admin`."""
        return cls("admin", whole_cluster=True)

    @property
    def aggregate_target(self) -> str | int:
        """The value of the command's `aggregate` field."""
        return 1 if self.collection is None else self.collection


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


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next attempt to resume."""

    seconds: float


Step: TypeAlias = Aggregate | GetMore | Pause


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
        return self.batch.cut() if isinstance(self.batch, UncutBatch) else self.batch

    @property
    def promises_more(self) -> bool:
        """Whether the batch is so large that the stream is behind: the next getMore will not have to wait."""
        batch = self.batch
        return isinstance(batch, UncutBatch) and batch.size >= LARGE_BATCH and self.cursor_id != 0
