"""What becomes of one document in a batch: its events, on top of what the mirror has of it (`tailrace.fold`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import bson

from tailrace import raw
from tailrace.fold import BASE, Moment, Spelling, moment_of
from tailrace.fold import fold as fold_records
from tailrace.raw import extended_json

_BSON = Spelling(extended_json.decode, bson.encode)


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """An event of one document; `event` is its BSON, or the document itself for the base."""

    version: int
    token: str
    operation: str
    event: bytes
    told_as: str | None = None
    """The name of its collection then, when it is not the mirror's."""

    @property
    def moment(self) -> Moment:
        """When it takes effect."""
        return moment_of(self.version, self.token)

    @property
    def document(self) -> bytes | None:
        """The whole document after the event, when the event has it."""
        return self.event if self.operation == BASE else self._part(b"fullDocument")

    @property
    def document_key(self) -> bytes | None:
        """The documentKey; the mirror knows a document by its `_id` alone."""
        return None if self.operation == BASE else self._part(b"documentKey")

    @property
    def update(self) -> bytes | None:
        """The updateDescription."""
        return self._part(b"updateDescription")

    def _part(self, name: bytes) -> bytes | None:
        span = raw.find(self.event, name)
        return None if span is None or span[0] != raw.DOCUMENT else self.event[span[1] : span[2]]


@dataclass(slots=True)
class Folded:
    """A document after all its events."""

    version: int = 0
    token: str = ""
    document: bytes | None = None
    is_deleted: bool = False
    is_changed: bool = False
    """Whether there is something newer than the base."""
    unknown: list[tuple[KeyEvent, str]] = field(default_factory=list)
    """Events that could not be applied, with the cause."""
    document_key: bytes | None = None
    """What a delete says about the document that was there."""
    told_as: str | None = None


def fold(events: Sequence[KeyEvent]) -> Folded:
    """Apply the events of one document, in whatever order they come."""
    found = fold_records(events, _BSON)
    newest = found.newest
    if newest is None:
        return Folded(unknown=found.unknown)
    key = newest.document_key if found.is_deleted else None
    return Folded(
        newest.version,
        newest.token,
        found.document,
        found.is_deleted,
        found.is_changed,
        found.unknown,
        key,
        newest.told_as,
    )
