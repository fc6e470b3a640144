"""Events as Extended JSON: `json` is relaxed, `canonical` keeps every type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.capture.formats import extended_json
from tailrace.capture.formats.decoded import DecodedFormat
from tailrace.capture.formats.event_fields import Place


class JsonFormat(DecodedFormat):
    """The whole event as relaxed Extended JSON; the key in the same spelling."""

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes:
        return extended_json.relaxed(document, event)


class CanonicalFormat(DecodedFormat):
    """The whole event as canonical Extended JSON: it can be turned back into the same BSON."""

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes:
        return extended_json.canonical(document)

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        return extended_json.canonical(key)
