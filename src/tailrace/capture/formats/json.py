"""Events as Extended JSON: `json` is relaxed, `canonical` keeps every type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.capture.formats import extended_json
from tailrace.capture.formats.decoded import DecodedFormat
from tailrace.capture.formats.event_fields import Place, make_record
from tailrace.capture.formats.keys import DOCUMENT_KEY
from tailrace.capture.formats.plain_event import cut, relaxed_event, relaxed_key
from tailrace.capture.record import Record


class JsonFormat(DecodedFormat):
    """The whole event as relaxed Extended JSON; the key in the same spelling."""

    def records(self, event: bytes) -> Sequence[Record]:
        """Give one record, and a tombstone after a delete if they are wanted."""
        plain = cut(event) if self._key is DOCUMENT_KEY else None
        if plain is None:
            return super().records(event)
        key = relaxed_key(plain.key)
        value = relaxed_event(plain, key)
        if value is None:
            return super().records(event)
        return self._delivered(make_record(event, plain.place, key, value, plain.operation, plain.namespace.name))

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes:
        return extended_json.relaxed(document, event)


class CanonicalFormat(DecodedFormat):
    """The whole event as canonical Extended JSON: it can be turned back into the same BSON."""

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes:
        return extended_json.canonical(document)

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        return extended_json.canonical(key)
