"""What formats have in common that decode the event: key, headers and tombstones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.capture.formats.format import Format
from tailrace.capture.record import Record
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json


class DecodedFormat(Format):
    """Decodes each event once; a subclass writes the value, and the key if it is not relaxed Extended JSON."""

    content_type = "application/json"

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give one record or none, and a tombstone after a delete if they are wanted."""
        document = extended_json.decode(event)
        view = ChangeEvent(event, document)
        value = self._value(document, view)
        if value is None:
            return ()
        key, is_missing = self._key.of(document)
        loss = self._loss(document, view, value)
        return self._delivered(self._record(view, self._key_text(key, event), value, loss, is_missing))

    @abstractmethod
    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes | None:
        """Write the value; None when this format has no record for such an event."""

    def _loss(self, document: Mapping[str, Any], view: ChangeEvent, value: bytes) -> str | None:
        """Name what the value does not carry, if it shall be named."""
        return None

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        return extended_json.relaxed(key, event)
