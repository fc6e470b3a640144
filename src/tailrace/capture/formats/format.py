"""The contract of formats: the bytes of an event in, the records for it out.

A format is given one kind of thing: a change event as BSON. A document of a snapshot comes as an event too, with
operationType `read` (`snapshot_event`), and a delete that recovery found as one with `recovered: true`
(`recovered_delete`), so that every format can express both and no format has a second entrance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import bson

from tailrace.capture.formats.headers import (
    KEY_HEADER,
    RECOVERED_HEADER,
    Header,
    Headers,
    headers_of,
    image_of_update,
    operation_header,
)
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.capture.formats.losses import HEADER
from tailrace.capture.record import Record
from tailrace.errors import EventUnconvertible
from tailrace.event import ChangeEvent

_HINT = "Use the format bson, which carries everything, or set capture.unrepresentable to keep."


class Format(ABC):
    """Turns events into records. Has no state that depends on earlier events."""

    content_type: str = "application/octet-stream"

    def __init__(self, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        self._key = key
        self._tombstones = tombstones
        self.looks_up = False
        """Whether the documents of updates were looked up after the event (`updateLookup`)."""
        self.keeps_unrepresentable = False
        """Whether an event that this format cannot carry whole is written all the same, with a header that says so."""

    def records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event, in order: usually one, with a tombstone two, or none.

        Raises EventUnconvertible when the event cannot be expressed; the caller writes it to the dead letters. A user's
        pipeline may give any field of an event another type.
        """
        try:
            return self._records(event)
        except (bson.errors.BSONError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise EventUnconvertible(f"the event has no shape of an event: {type(error).__name__} {error}") from error

    @abstractmethod
    def _records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event."""

    def batch(self, events: Sequence[bytes]) -> Sequence[Record]:
        """Give the records for many events, in order; raises when any of them cannot be expressed."""
        return [record for event in events for record in self.records(event)]

    def _record(
        self, view: ChangeEvent, key: bytes | None, value: bytes | None, loss: str | None, is_key_missing: bool
    ) -> Record:
        """Make the record of an event, with the headers that all formats have."""
        operation = view.operation_type
        headers = headers_of(view.token_text, view.token_time.text.encode(), operation_header(operation))
        if operation == "update":
            headers.append(self._image_header(view))
        if view.is_recovered:
            headers.append(RECOVERED_HEADER)
        if is_key_missing:
            headers.append(KEY_HEADER)
        if operation == "rename" and (to := view.new_namespace) is not None:
            headers.append(("to", to.encode()))
        self._mark(headers, loss)
        return Record(key, value, headers, view.namespace, operation, view.raw)

    def _image_header(self, view: ChangeEvent) -> Header:
        """Say what an update tells of its document."""
        return image_of_update(
            has_image=view.has_full_document,
            is_null=view.has_null_document,
            is_later=self.looks_up or view.is_image_fetched,
        )

    def _mark(self, headers: Headers, loss: str | None) -> None:
        """Say in the headers what is lost of an event; EventUnconvertible when such events are refused."""
        if loss is None:
            return
        if not self.keeps_unrepresentable:
            raise EventUnconvertible(f"the format cannot carry the event: {loss}", hint=_HINT)
        headers.append((HEADER, loss.encode()))

    def _delivered(self, record: Record) -> Sequence[Record]:
        """Give the record, followed by a tombstone if it is a delete and tombstones are wanted."""
        if self._tombstones and record.operation == "delete":
            return record, record._replace(value=None)
        return (record,)
