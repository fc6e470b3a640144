"""Events as they are, there and back: the BSON bytes of the server, untouched."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tailrace.capture.formats.format import Format
from tailrace.capture.formats.json import CanonicalDecoder
from tailrace.capture.formats.stored_records import KafkaRecord, ReadEvent, StoredRecord, state_of_event
from tailrace.capture.record import Record
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json


class BsonFormat(Format):
    """The event's own bytes; the key is a BSON document too. Nothing is decoded."""

    content_type = "application/bson"

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give one record, and a tombstone after a delete if they are wanted."""
        view = ChangeEvent(event)
        key, is_missing = self._key.of_raw(view)
        return self._delivered(self._record(view, key, event, None, is_missing))


class BsonDecoder(CanonicalDecoder):
    """Reads `bson`; its documents are compared as canonical Extended JSON."""

    name = "bson"
    is_event_in_value = True

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        decoded = extended_json.decode(value)
        return state_of_event(orjson.loads(extended_json.canonical(decoded)), decoded.get("documentKey"))

    def _event(self, record: KafkaRecord) -> ReadEvent:
        """Decode it: that looks at every byte, at a tenth of the cost of doing so here."""
        return ReadEvent(record.value, extended_json.decode(record.value))
