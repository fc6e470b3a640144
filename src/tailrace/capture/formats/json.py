"""Events as Extended JSON, and back: `json` is relaxed, `canonical` keeps every type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tailrace import raw
from tailrace.capture.formats.format import DecodedFormat, losses_of
from tailrace.capture.formats.stored_records import (
    KafkaRecord,
    Plain,
    ReadEvent,
    RecordDecoder,
    StoredRecord,
    state_of_event,
)
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json


class JsonFormat(DecodedFormat):
    """The whole event as relaxed Extended JSON; the key in the same spelling.

    It does not distinguish int32 from int64, and cannot represent what `losses` names.
    """

    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes:
        return extended_json.relaxed(document, view.raw)

    def _loss(self, document: Mapping[str, Any], view: ChangeEvent, value: bytes) -> str | None:
        return _loss(extended_json.is_exact(document, view.raw), view.raw)


class CanonicalFormat(DecodedFormat):
    """The whole event as canonical Extended JSON: it can be turned back into the same BSON."""

    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes:
        return extended_json.canonical(document)

    def _loss(self, document: Mapping[str, Any], view: ChangeEvent, value: bytes) -> str | None:
        is_exact = extended_json.is_exact(document, view.raw)
        loss = _loss(is_exact, view.raw)
        if loss is None and not (is_exact and extended_json.is_canonical_of(value, view.raw)):
            loss = "its text cannot be turned back into the same bytes"
        return loss

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        return extended_json.canonical(key)


def _loss(is_exact: bool, event: bytes) -> str | None:
    """Name what Extended JSON cannot carry: a field that is there twice, a deprecated type, what is read as a value."""
    if is_exact and not extended_json.may_look_like_a_value(event):
        return None
    return next(losses_of(event), None)


class JsonDecoder(RecordDecoder):
    """Reads `json`; and any spelling of Extended JSON."""

    name = "json"
    is_whole_in_value = True

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        event = orjson.loads(value)
        found = event.get("documentKey")
        return state_of_event(event, None if found is None else extended_json.loads(orjson.dumps(found)))

    def _event(self, record: KafkaRecord) -> ReadEvent:
        event = extended_json.loads(record.value)
        if not isinstance(event, dict) or "operationType" not in event:
            raise ValueError("no operationType")
        return ReadEvent(raw.encode(event))


class CanonicalDecoder(JsonDecoder):
    """Reads `canonical`."""

    name = "canonical"

    def spelled(self, document: bytes) -> Plain:
        """Give a document with the types of its numbers."""
        return canonically_spelled(document)


def canonically_spelled(document: bytes) -> Plain:
    """Give a document as canonical Extended JSON, parsed."""
    spelled: Plain = orjson.loads(extended_json.canonical(extended_json.decode(document)))
    return spelled
