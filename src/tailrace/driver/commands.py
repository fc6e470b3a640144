"""The driver's values: what is watched, the steps that the resume logic asks of a shell, and a user's batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import bson
from bson.timestamp import Timestamp

from tailrace.client.commands import Aggregate, GetMore
from tailrace.event import token_of


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
class Pause:
    """Wait before the next attempt to resume."""

    seconds: float


Step: TypeAlias = Aggregate | GetMore | Pause


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one reply, as BSON documents.

    A batch may be empty: then `resume_token` is what it brings, a position further on.
    """

    events: Sequence[bytes]
    token: bytes | None
    """The BSON of `resume_token`, as it came: for whoever keeps tokens as bytes."""
    operation_time: Timestamp | None
    """The server's operation time when it answered: what the position can be compared with."""

    @property
    def resume_token(self) -> dict[str, Any] | None:
        """Where to resume after the whole batch, a document like `ChangeStream.resume_token`.

        None when a server without post-batch tokens had no event yet.
        """
        return None if self.token is None else bson.decode(self.token)

    @property
    def tokens(self) -> list[bytes]:
        """The resume token of each event as BSON, found when asked for."""
        return [token_of(event) for event in self.events]
