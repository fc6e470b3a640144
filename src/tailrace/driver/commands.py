"""What is watched, and the steps that the resume logic asks of a shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tailrace.client.commands import Aggregate, GetMore


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
