"""Which records are about one document: those with equal `_id`s, whatever the types of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace import raw
from tailrace.token import keystring


def id_of(document_key: Mapping[str, Any]) -> bytes:
    """Give bytes that are equal for equal `_id`s, and sort like them."""
    return id_of_value(raw.from_python(document_key["_id"]))


def id_of_value(value: raw.Value) -> bytes:
    """Give the same for an `_id` in BSON."""
    return keystring.encode([value])[0]
