"""What a record's key is: the document's key, or a field of the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace import raw
from tailrace.event import ChangeEvent

_FIELDS = ("documentKey", "fullDocument", "fullDocumentBeforeChange")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How events get their keys. Events with equal keys stay in order, in one partition.

    By default it is the documentKey. With `field`, for example `user_id` or `customer.id`, it is that field, looked for
    in the documentKey, the document and the document before the change. Where the event has it nowhere (an update
    without full document, a delete without pre-image), the documentKey stands in and the record says so in the header
    `key`. An event about a collection or database has its namespace as key.
    """

    field: str | None = None

    def of(self, event: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Give the key of a decoded event, and whether the field was missing."""
        if self.field is not None:
            for field in _FIELDS:
                found = value_at(event.get(field), self.field)
                if found is not _MISSING:
                    return {self.field: found}, False
        key = event.get("documentKey")
        return ({"ns": event.get("ns")} if key is None else key), self.field is not None

    def of_raw(self, view: ChangeEvent) -> tuple[bytes, bool]:
        """Give the key of an event as a BSON document, and whether the field was missing."""
        event, spans = view.raw, view.spans
        if self.field is not None:
            for field in _FIELDS:
                span = spans.get(field.encode())
                if span is not None and span[0] == raw.DOCUMENT:
                    found = raw.find_path(event, *self.field.encode().split(b"."), start=span[1])
                    if found is not None:
                        element = raw.element(found[0], self.field.encode(), event[found[1] : found[2]])
                        return raw.document(element), False
        span = spans.get(b"documentKey")
        if span is not None:
            return event[span[1] : span[2]], self.field is not None
        ns = spans.get(b"ns")
        about = raw.element(ns[0], b"ns", event[ns[1] : ns[2]]) if ns else raw.element(raw.NULL, b"ns", b"")
        return raw.document(about), self.field is not None


DOCUMENT_KEY = KeyRule()
"""The default rule."""


def value_at(document: Any, path: str) -> Any:
    """Follow a dotted path through decoded documents; a private mark means that it leads nowhere."""
    value = document
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def is_missing(value: Any) -> bool:
    """Whether `value_at` found nothing; None is a value like any other."""
    return value is _MISSING
