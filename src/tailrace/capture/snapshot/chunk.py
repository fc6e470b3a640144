"""Pieces of a snapshot: a range of `_id`, a list of keys to look for, or what was found out without reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import bson
from bson import json_util
from bson.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class Chunk:
    """The documents with `lower <= _id < upper` in the order of the `_id` index, which runs through all types.

    A bound is a BSON document `{_id: value}`; None means no bound on that side. The bounds are those of an index
    scan, not of a query: `{_id: {$gte: 5}}` would leave out every string and ObjectId.
    """

    namespace: str
    number: int
    lower: bytes | None
    upper: bytes | None


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Documents that were captured before; those that are gone were deleted without an event."""

    namespace: str
    keys: tuple[bytes, ...]
    """documentKeys, as BSON documents."""
    newest_lost: Timestamp | None = None
    """The last time whose events are missing: when a document got another shard key without an event."""


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """Events that happened in a gap and are known already: renames of collections."""

    events: tuple[bytes, ...]


def chunks_between(namespace: str, bounds: Sequence[bytes]) -> list[Chunk]:
    """Make the chunks that `bounds` cut a collection into: one more than there are bounds."""
    edges: list[bytes | None] = [None, *bounds, None]
    return [Chunk(namespace, number, edges[number], edges[number + 1]) for number in range(len(edges) - 1)]


def bounds_to_json(bounds: Sequence[bytes]) -> list[str]:
    """Give bounds as hexadecimal digits: every value of every type comes back as it was."""
    return [bound.hex() for bound in bounds]


def bounds_from_json(forms: Sequence[str]) -> list[bytes]:
    """Read what `bounds_to_json` gave, or what an older version wrote: canonical Extended JSON."""
    return [_from_extended_json(form) if form.startswith("{") else bytes.fromhex(form) for form in forms]


def _from_extended_json(form: str) -> bytes:
    return bson.encode(json_util.loads(form, json_options=json_util.CANONICAL_JSON_OPTIONS))
