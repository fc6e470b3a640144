"""The contract of formats: the bytes of an event in, the records for it out.

A format is given one kind of thing: a change event as BSON. A document of a snapshot comes as an event too, with
operationType `read` (`snapshot_event`), and a delete that recovery found as one with `recovered: true`
(`recovered_delete`), so that every format can express both and no format has a second entrance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.capture.record import Record


class Format(ABC):
    """Turns events into records. Has no state that depends on earlier events."""

    content_type: ClassVar[str] = "application/octet-stream"

    def __init__(self, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        self._key = key
        self._tombstones = tombstones
        self.looks_up = False
        """Whether the documents of updates were looked up after the event (`updateLookup`)."""

    @abstractmethod
    def records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event, in order: usually one, with a tombstone two, or none.

        Raises EventUnconvertible when the event cannot be expressed; the caller writes it to the dead letters.
        """

    def batch(self, events: Sequence[bytes]) -> list[Record]:
        """Give the records for many events, in order; raises when any of them cannot be expressed."""
        return [record for event in events for record in self.records(event)]

    def _delivered(self, record: Record) -> Sequence[Record]:
        """Give the record, followed by a tombstone if it is a delete and tombstones are wanted."""
        if self._tombstones and record.operation == "delete":
            return record, record._replace(value=None)
        return (record,)
