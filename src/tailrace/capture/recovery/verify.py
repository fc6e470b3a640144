"""Compare the state rebuilt from a topic with the collection it came from, at one cluster time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace import raw
from tailrace.capture.formats.stored_records import RecordDecoder
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.recovery.rebuilt_state import RebuiltState
from tailrace.capture.snapshot.chunk import Chunk
from tailrace.capture.snapshot.reading import ChunkReader
from tailrace.errors import EventUnconvertible
from tailrace.fold import id_of_value
from tailrace.policy import NO_POLICY, Policy
from tailrace.raw.cluster_time import ClusterTime
from tailrace.raw.display import decode_for_display

if TYPE_CHECKING:
    from tailrace.capture.recovery.topic_reader import TopicMessage

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
            examples.append(decode_for_display(document_key)["_id"])


class Verification:
    """Rebuilds the state once and compares any number of collections with it."""

    def __init__(
        self,
        client: MongoClient[Any],
        decoder: RecordDecoder,
        at: Timestamp,
        policy: Policy = NO_POLICY,
        is_followed: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._policy = policy
        self._reader = ChunkReader(client)
        self._decoder = decoder
        self._at = at
        self._state = RebuiltState(
            with_documents=decoder.has_documents, limit=ClusterTime.from_timestamp(at), is_followed=is_followed
        )
        self.records = 0

    def close(self) -> None:
        """Remove what was rebuilt."""
        self._state.close()

    def read(self, address: KafkaAddress, topics: list[str], show: Callable[[int], None]) -> None:
        """Rebuild the state of the time from the records of topics."""
        from tailrace.capture.recovery.topic_reader import TopicContents

        contents = TopicContents(address, topics)

        def messages() -> Iterator[TopicMessage]:
            for self.records, message in enumerate(contents.messages(), 1):
                if self.records % 10_000 == 0:
                    show(self.records)
                yield message

        self._state.read(messages, self._decoder)

    def namespaces(self) -> list[str]:
        """Give the collections that the records are about."""
        return self._state.namespaces()

    def compare(self, namespace: str) -> Comparison:
        """Compare one collection, as of the time, with what was rebuilt."""
        result = Comparison(namespace, self._at)
        compared = 0
        for document in self._documents(namespace):
            result.documents += 1
            compared += self._compare_document(result, document)
        if compared != sum(1 for _ in self._state.keys(namespace)):
            self._find_extra(result)
        return result

    def _documents(self, namespace: str) -> Iterator[bytes]:
        found = self._reader.documents(Chunk(namespace, 0, None, None), self._at)
        return (self._policy.document(namespace, document) for document in found)

    def _compare_document(self, result: Comparison, document: bytes) -> bool:
        """Compare one document; gives whether the topic has it at all."""
        value = _id_value(document)
        id_ = id_of_value(value)
        known = self._state.get(result.namespace, id_)
        if known is not None and self._same(known.document, document):
            result.equal += 1
            return True
        kind = "missing" if known is None else "stale"
        if self._state.is_later(result.namespace, id_):
            kind = "unsettled"
        result.count(kind, raw.document(raw.element(value.kind, b"_id", value.data)))
        return known is not None

    def _same(self, known: bytes | None, document: bytes) -> bool:
        if not self._decoder.has_documents:
            return True
        if known is None:
            return False
        try:
            return bool(orjson.loads(known) == self._decoder.spelled(document))
        except EventUnconvertible:
            return False  # what the format cannot write is in no record

    def _find_extra(self, result: Comparison) -> None:
        there = (id_of_value(_id_value(document)) for document in self._documents(result.namespace))
        for id_, document_key in self._state.keys_without(result.namespace, there):
            kind = "unsettled" if self._state.is_later(result.namespace, id_) else "extra"
            result.count(kind, document_key)


def _id_value(document: bytes) -> raw.Value:
    value = raw.field(document, b"_id")
    assert value is not None  # every stored document has one
    return value
