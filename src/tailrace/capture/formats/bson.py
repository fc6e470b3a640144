"""Events as they are: the BSON bytes of the server, untouched."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import raw
from tailrace.capture.formats.event_fields import (
    Header,
    Place,
    Spans,
    image_of_update,
    make_record,
    raw_namespace,
    spans_of,
    text_at,
)
from tailrace.capture.formats.format import Format
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.capture.formats.plain_event import Cutter, plain_record
from tailrace.capture.record import Record


class BsonFormat(Format):
    """The event's own bytes; the key is a BSON document too. Nothing is decoded."""

    content_type = "application/bson"

    def __init__(self, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        super().__init__(key, tombstones=tombstones)
        self._cutter = Cutter()

    def records(self, event: bytes) -> Sequence[Record]:
        """Give one record, and a tombstone after a delete if they are wanted."""
        plain = self._cutter.cut(event) if self._key is DOCUMENT_KEY else None
        if plain:
            return self._delivered(plain_record(event, plain, plain.key, event, self.looks_up))
        spans = spans_of(event)
        key, is_missing = self._key.of_raw(event, spans)
        operation = text_at(event, spans[b"operationType"]) if b"operationType" in spans else ""
        record = make_record(
            event,
            Place.of(event),
            key,
            event,
            operation,
            raw_namespace(event, spans),
            is_recovered=b"recovered" in spans,
            is_key_missing=is_missing,
            image=self._image_header(spans) if operation == "update" else None,
        )
        return self._delivered(record)

    def _image_header(self, spans: Spans) -> Header:
        full = spans.get(b"fullDocument")
        return image_of_update(
            has_image=full is not None,
            is_null=full is not None and full[0] == raw.NULL,
            is_later=self.looks_up or b"imageFetched" in spans,
        )
