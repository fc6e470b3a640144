"""Compare the state rebuilt from a topic with the collection it came from, at one cluster time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import bson
import orjson
from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace import raw
from tailrace.capture.formats.stored_records import RecordDecoder
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.recovery.rebuilt_state import RebuiltState, id_of_value
from tailrace.capture.recovery.topic_reader import read_topics
from tailrace.capture.snapshot.chunk import Chunk
from tailrace.capture.snapshot.reading import ChunkReader

_EXAMPLES = 20


@dataclass(slots=True)
class Comparison:
    """What differs between a topic and a collection at one cluster time."""

    namespace: str
    at: Timestamp
    documents: int = 0
    """Documents in the collection."""
    equal: int = 0
    missing: int = 0
    """In the collection and not in the topic."""
    stale: int = 0
    """In both, but different."""
    extra: int = 0
    """In the topic and not in the collection."""
    unsettled: int = 0
    """Different, but with records newer than the time compared: their document may be newer than their event."""
    examples: dict[str, list[Any]] = field(default_factory=dict)
    """The first keys of each kind of difference."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing is missing, stale or extra."""
        return not (self.missing or self.stale or self.extra)

    def to_json(self) -> dict[str, Any]:
        """Give it as plain values."""
        return {**asdict(self), "at": {"t": self.at.time, "i": self.at.inc}, "is_equal": self.is_equal}

    def count(self, kind: str, document_key: bytes) -> None:
        """Note one difference."""
        setattr(self, kind, getattr(self, kind) + 1)
        examples = self.examples.setdefault(kind, [])
        if len(examples) < _EXAMPLES:
            examples.append(bson.decode(document_key)["_id"])


class Verification:
    """Rebuilds the state once and compares any number of collections with it."""

    def __init__(self, client: MongoClient[Any], decoder: RecordDecoder) -> None:
        self._reader = ChunkReader(client)
        self._decoder = decoder
        self._state = RebuiltState(with_documents=decoder.carries_documents)
        self._later: set[tuple[str, bytes]] = set()
        self.records = 0

    def close(self) -> None:
        """Remove what was rebuilt."""
        self._state.close()

    def read(self, address: KafkaAddress, topics: list[str], at: Timestamp, show: Callable[[int], None]) -> None:
        """Rebuild the state of a time from the records of topics."""
        limit = at.time << 32 | at.inc
        for message in read_topics(address, topics):
            self.records += 1
            if self.records % 10_000 == 0:
                show(self.records)
            if message.value is None:
                continue
            record = self._decoder.read(message.key, message.value)
            if message.cluster_time <= limit:
                self._state.apply(record, message.cluster_time)
            elif record.document_key is not None:
                found = raw.from_python(record.document_key["_id"])
                self._later.add((record.namespace, id_of_value(found)))

    def namespaces(self) -> list[str]:
        """Give the collections that the records are about."""
        return self._state.namespaces()

    def compare(self, namespace: str, at: Timestamp) -> Comparison:
        """Compare one collection, as of the time, with what was rebuilt."""
        result = Comparison(namespace, at)
        seen = 0
        for document in self._documents(namespace, at):
            result.documents += 1
            seen += self._compare_document(result, document)
        if seen != sum(1 for _ in self._state.documents(namespace)):
            self._find_extra(result, namespace, at)
        return result

    def _documents(self, namespace: str, at: Timestamp) -> Iterator[bytes]:
        return self._reader.documents(Chunk(namespace, 0, None, None), at)

    def _compare_document(self, result: Comparison, document: bytes) -> bool:
        """Compare one document; gives whether the topic has it at all."""
        value = raw.field(document, b"_id")
        assert value is not None  # every stored document has one
        id_ = id_of_value(value)
        known = self._state.get(result.namespace, id_)
        if known is not None and self._same(known.document, document):
            result.equal += 1
            return True
        kind = "missing" if known is None else "stale"
        if (result.namespace, id_) in self._later:
            kind = "unsettled"
        result.count(kind, raw.document(raw.element(value.kind, b"_id", value.data)))
        return known is not None

    def _same(self, known: bytes | None, document: bytes) -> bool:
        if not self._decoder.carries_documents:
            return True
        return known is not None and orjson.loads(known) == self._decoder.spelled(document)

    def _find_extra(self, result: Comparison, namespace: str, at: Timestamp) -> None:
        there = set()
        for document in self._documents(namespace, at):
            value = raw.field(document, b"_id")
            if value is not None:
                there.add(id_of_value(value))
        for id_, known in self._state.documents(namespace):
            if id_ not in there:
                result.count("unsettled" if (namespace, id_) in self._later else "extra", known.document_key)
