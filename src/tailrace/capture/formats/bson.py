"""Events as they are, there and back: the BSON bytes of the server, untouched."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tailrace.capture.formats.format import Format
from tailrace.capture.formats.headers import headers_of, image_of_update
from tailrace.capture.formats.json import CanonicalDecoder
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.capture.formats.plain_event import Cutter, PlainEvent
from tailrace.capture.formats.stored_records import KafkaRecord, ReadEvent, StoredRecord, state_of_event
from tailrace.capture.record import Record, new_record
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json


class BsonFormat(Format):
    """The event's own bytes; the key is a BSON document too. Nothing is decoded."""

    content_type = "application/bson"

    def __init__(self, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        super().__init__(key, tombstones=tombstones)
        self._cutter = Cutter()

    def records(self, event: bytes) -> Sequence[Record]:
        """Give one record, and a tombstone after a delete if they are wanted."""
        return self.batch([event])

    def batch(self, events: Sequence[bytes]) -> list[Record]:
        """Make the records of plain events by their layout, and of the others by a walk."""
        cut = self._cutter.cut if self._key is DOCUMENT_KEY else _not_plain
        records: list[Record] = []
        for event in events:
            plain = cut(event)
            record = self._walked(event) if plain is None else self._cut(event, plain)
            if self._tombstones:
                records += self._delivered(record)
            else:
                records.append(record)
        return records

    def _cut(self, event: bytes, plain: PlainEvent) -> Record:
        token, operation, seconds, increment, _, document, _, namespace, key, key_end, _, update = plain
        headers = headers_of(token, b"%d:%d" % (seconds, increment), operation.header)
        if update:
            headers.append(image_of_update(has_image=document > 0, is_later=self.looks_up))
        return new_record(Record, (event[key:key_end], event, headers, namespace.name, operation.name, event))

    def _walked(self, event: bytes) -> Record:
        view = ChangeEvent(event)
        key, is_missing = self._key.of_raw(view)
        return self._record(view, key, event, None, is_missing)


def _not_plain(_: bytes) -> None:
    """Keys from a field of the document need the document."""


class BsonDecoder(CanonicalDecoder):
    """Reads `bson`; its documents are compared as canonical Extended JSON."""

    name = "bson"

    def read(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        decoded = extended_json.decode(value)
        return state_of_event(orjson.loads(extended_json.canonical(decoded)), decoded.get("documentKey"))

    def _event(self, record: KafkaRecord) -> ReadEvent:
        """Decode it: that looks at every byte, at a tenth of the cost of doing so here."""
        return ReadEvent(record.value, extended_json.decode(record.value))
