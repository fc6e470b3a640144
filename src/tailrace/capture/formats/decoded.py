"""What formats have in common that decode the event: key, headers and tombstones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.capture.formats.event_fields import Header, Place, image_of_update, make_record, namespace_of
from tailrace.capture.formats.format import Format
from tailrace.capture.record import Record
from tailrace.raw import extended_json


class DecodedFormat(Format):
    """Decodes each event once; a subclass writes the value, and the key if it is not relaxed Extended JSON."""

    content_type = "application/json"

    def records(self, event: bytes) -> Sequence[Record]:
        """Give one record or none, and a tombstone after a delete if they are wanted."""
        document = extended_json.decode(event)
        place = Place.of(event)
        value = self._value(document, event, place)
        if value is None:
            return ()
        key, is_missing = self._key.of(document)
        operation = document.get("operationType", "")
        record = make_record(
            event,
            place,
            self._key_text(key, event),
            value,
            operation,
            namespace_of(document),
            is_recovered="recovered" in document,
            is_key_missing=is_missing,
            image=self._image_header(document) if operation == "update" else None,
        )
        return self._delivered(record)

    def _image_header(self, document: Mapping[str, Any]) -> Header:
        return image_of_update(
            has_image="fullDocument" in document,
            is_null=document.get("fullDocument", True) is None,
            is_later=self.looks_up or "imageFetched" in document,
        )

    @abstractmethod
    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes | None:
        """Write the value; None when this format has no record for such an event."""

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        return extended_json.relaxed(key, event)
