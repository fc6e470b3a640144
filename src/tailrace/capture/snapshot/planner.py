"""Cut a collection into chunks of about equal size, by sampling its `_id` values."""

from __future__ import annotations

from typing import Any

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.collection import Collection

from tailrace import raw
from tailrace.capture.snapshot.chunk import Chunk, chunks_between

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
