"""What becomes of one document in a batch: its events in their order, on top of what the mirror has of it.

An update that brings no document is applied to the document before it. When nobody knows that one, the update is
handed back: a document is never invented, and a lookup that found nothing is never taken for a delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import bson

from tailrace import raw
from tailrace.capture.formats.update_description import apply_update
from tailrace.raw import extended_json

BASE: Final = "base"
"""operationType of the row that the mirror has already."""
DATA_OPERATIONS: Final = ("insert", "update", "replace", "delete", "read")
BASE_UNKNOWN: Final = "base-unknown"
DELTA_MISSING: Final = "delta-missing"


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """An event of one document; `event` is its BSON, or the document itself for the base."""

    version: int
    token: str
    operation: str
    event: bytes

    @property
    def document(self) -> bytes | None:
        """The whole document after the event, when the event has it."""
        return self.event if self.operation == BASE else self._part(b"fullDocument")

    @property
    def document_key(self) -> bytes | None:
        """The documentKey."""
        return self._part(b"documentKey")

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


def fold(events: Sequence[KeyEvent]) -> Folded:
    """Apply the events of one document, in whatever order they come."""
    state = _State()
    for event in events if len(events) == 1 else sorted(events, key=_order):
        state.apply(event)
    return state.result()


def _order(event: KeyEvent) -> tuple[int, str, bool]:
    return event.version, event.token, event.operation != BASE


class _State:
    def __init__(self) -> None:
        self._result = Folded()
        self._decoded: dict[str, Any] | None = None
        self._base: tuple[int, str] | None = None

    def apply(self, event: KeyEvent) -> None:
        place = event.version, event.token
        if event.operation == BASE:
            # Everything before is in it already, and whatever could not be applied is made good by it.
            self._base = place
            self._put(event, event.document)
            self._result.is_changed = False
        elif self._base is not None and place <= self._base:
            return
        elif event.operation == "delete":
            self._put(event, None)
            self._result.is_deleted, self._result.document_key = True, event.document_key
        elif (document := event.document) is not None:
            self._put(event, document)
        else:
            self._apply_update(event)

    def result(self) -> Folded:
        if self._decoded is not None:
            self._result.document = bson.encode(self._decoded)
        return self._result

    def _put(self, event: KeyEvent, document: bytes | None) -> None:
        self._result = Folded(event.version, event.token, document, is_changed=True)
        self._decoded = None

    def _apply_update(self, event: KeyEvent) -> None:
        result = self._result
        update = event.update
        if self._decoded is None and result.document is None:
            result.unknown.append((event, BASE_UNKNOWN))
            return
        if update is None:
            result.unknown.append((event, DELTA_MISSING))
            return
        if self._decoded is None:
            assert result.document is not None
            self._decoded = extended_json.decode(result.document)
        apply_update(self._decoded, extended_json.decode(update))
        result.version, result.token, result.is_changed = event.version, event.token, True
