"""Pieces of a snapshot: a range of `_id`, a list of keys to look for, or what was found out without reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bson import json_util
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection

from tailrace import raw


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
    return raw.encode(json_util.loads(form, json_options=json_util.CANONICAL_JSON_OPTIONS))


CHUNK_BYTES = 8 * 1024 * 1024
"""About how much of a collection one chunk holds; it is in memory while it is delivered."""
MOST_CHUNKS = 4096
"""So that a plan stays small enough for every position store."""
_SAMPLES_PER_CHUNK = 20
_FEWEST_DOCUMENTS = 200

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def plan_collection(client: MongoClient[Any], namespace: str, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """Plan the chunks of a collection. Only reads, and sorts the sample on the server, in its own order of types."""
    database, _, name = namespace.partition(".")
    collection = client[database].get_collection(name, codec_options=RAW)
    wanted = _chunk_count(client, database, name, chunk_bytes)
    if wanted < 2:
        return chunks_between(namespace, [])
    return chunks_between(namespace, _bounds(collection, wanted))


def estimated_documents(client: MongoClient[Any], namespace: str) -> int:
    """Give about how many documents a collection has, from its metadata."""
    database, _, name = namespace.partition(".")
    return client[database][name].estimated_document_count()


def _chunk_count(client: MongoClient[Any], database: str, name: str, chunk_bytes: int) -> int:
    stats = client[database].command("collStats", name)
    documents, size = stats.get("count", 0), stats.get("size", 0)
    by_size = int(size // chunk_bytes) + 1
    by_count = documents // _FEWEST_DOCUMENTS + 1
    return int(min(by_size, by_count, MOST_CHUNKS))


def _bounds(collection: Collection[RawBSONDocument], wanted: int) -> list[bytes]:
    """Give the `_id` values that separate chunks: every so-manieth of a sorted sample, each once."""
    pipeline: list[dict[str, Any]] = [
        {"$sample": {"size": wanted * _SAMPLES_PER_CHUNK}},
        {"$project": {"_id": 1}},
        {"$sort": {"_id": 1}},
    ]
    sample = [document.raw for document in collection.aggregate(pipeline, allowDiskUse=True)]
    step = max(1, len(sample) // wanted)
    bounds: list[bytes] = []
    for document in sample[step::step]:
        bound = _only_id(bytes(document))
        if not bounds or bound != bounds[-1]:  # a small collection is sampled twice at the same place
            bounds.append(bound)
    return bounds


def _only_id(document: bytes) -> bytes:
    found = raw.field(document, b"_id")
    assert found is not None  # every stored document has one
    return raw.document(raw.element(found.kind, b"_id", found.data))
