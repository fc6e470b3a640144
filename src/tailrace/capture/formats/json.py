"""Events as Extended JSON: `json` is relaxed, `canonical` keeps every type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.capture.formats import extended_json
from tailrace.capture.formats.decoded import DecodedFormat
from tailrace.capture.formats.event_fields import Place
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
from tailrace.capture.formats.plain_event import (
    Cutter,
    PlainEvent,
    plain_record,
    relaxed_event,
    relaxed_key,
    rest_of_document,
)
from tailrace.capture.record import Record


class JsonFormat(DecodedFormat):
    """The whole event as relaxed Extended JSON; the key in the same spelling."""

    def __init__(self, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        super().__init__(key, tombstones=tombstones)
        self._cutter = Cutter()

    def records(self, event: bytes) -> Sequence[Record]:
        """Give one record, and a tombstone after a delete if they are wanted."""
        return self.batch([event])

    def batch(self, events: Sequence[bytes]) -> list[Record]:
        """Write the documents of all events at once, and each event around its own."""
        if self._key is not DOCUMENT_KEY:
            return [record for event in events for record in super(JsonFormat, self).records(event)]
        cut = self._cutter.cut
        plains = [cut(event) for event in events]
        rests = [plain and rest_of_document(plain) for plain in plains]
        parts = [
            part
            for plain, rest in zip(plains, rests, strict=True)
            if plain
            for part in (rest or plain.document, plain.update)
            if part is not None
        ]
        texts = iter(extended_json.relaxed_documents(parts))
        records: list[Record] = []
        for event, plain, rest in zip(events, plains, rests, strict=True):
            record = None
            if plain is not None:
                key = relaxed_key(plain.key)
                document = next(texts) if plain.document is not None else None
                if document is not None and rest is not None:
                    document = key if document == b"{}" else b"%b,%b" % (key[:-1], document[1:])
                update = next(texts) if plain.update is not None else None
                record = self._record(event, plain, key, document, update)
            if record is None:
                records += super().records(event)
            elif self._tombstones:
                records += self._delivered(record)
            else:
                records.append(record)
        return records

    def _record(
        self, event: bytes, plain: PlainEvent, key: bytes, document: bytes | None, update: bytes | None
    ) -> Record | None:
        value = relaxed_event(plain, key, document, update)
        return None if value is None else plain_record(event, plain, key, value, self.looks_up)

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes:
        return extended_json.relaxed(document, event)


class CanonicalFormat(DecodedFormat):
    """The whole event as canonical Extended JSON: it can be turned back into the same BSON."""

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes:
        return extended_json.canonical(document)

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        return extended_json.canonical(key)
