"""Change events into the changes that the features are made of; nothing else of an event is decoded."""

from __future__ import annotations

import pyarrow as pa

from tailrace import raw
from tailrace.capture.formats.event_fields import Place, Spans, raw_namespace, spans_of, text_at
from tailrace.errors import EventUnconvertible
from tailrace.features import Definition
from tailrace.features.store import Change
from tailrace.raw import extended_json

_ENDS = {"drop", "rename", "dropDatabase"}


class Collected:
    """The changes in a part of a batch, and how far it reaches."""

    def __init__(self, definition: Definition) -> None:
        self._namespaces = {definition.namespace, definition.namespace.partition(".")[0]}
        self.changes: list[Change] = []
        self.position = ""
        """The newest token."""
        self.as_of = 0
        """Its cluster time, in seconds."""
        self.drops = ""
        """The token of the newest event that took the collection away."""
        self.bad = 0
        """Rows without an event: records that cannot be read."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a record batch, each with the BSON of its event in the column `raw`."""
        for event in batch.column("raw").to_pylist():
            if event is None:
                self.bad += 1
            else:
                self._take(event)

    def _take(self, event: bytes) -> None:
        spans, place = spans_of(event), Place.of(event)
        token, as_of = place.text.decode(), _seconds(event, spans, place)
        if token > self.position:
            self.position, self.as_of = token, as_of
        if raw_namespace(event, spans) not in self._namespaces:
            return
        operation = _operation(event, spans)
        key = _part(event, spans, b"documentKey")
        if operation in _ENDS:
            self.drops = max(self.drops, token)
        elif key is not None:
            document = _part(event, spans, b"fullDocument")
            # A lookup that found nothing is no delete: what the update says is then all that is known.
            update = _part(event, spans, b"updateDescription") if document is None else None
            wall = _wall_ms(event, spans)
            self.changes.append(Change(_key_text(key), token, document, update, operation == "delete", as_of, wall))


def _part(event: bytes, spans: Spans, name: bytes) -> bytes | None:
    span = spans.get(name)
    return None if span is None or span[0] != raw.DOCUMENT else event[span[1] : span[2]]


def _operation(event: bytes, spans: Spans) -> str:
    span = spans.get(b"operationType")
    if span is None:
        raise EventUnconvertible("the event has no operationType", hint="Keep it in every stage of the pipeline.")
    return text_at(event, span)


def _seconds(event: bytes, spans: Spans, place: Place) -> int:
    """Give the cluster time; the token of a foreign record is its place in the topic, and tells none."""
    span = spans.get(b"clusterTime")
    if span is None or span[0] != raw.TIMESTAMP:
        return place.cluster_time >> 32
    return int.from_bytes(event[span[1] + 4 : span[2]], "little")


def _wall_ms(event: bytes, spans: Spans) -> int | None:
    span = spans.get(b"wallTime")
    return None if span is None or span[0] != raw.DATE else raw.int64_at(event, span[1])


def _key_text(key: bytes) -> str:
    """Give the documentKey as text: the `_id` alone, which is what identifies a document."""
    span = raw.find(key, b"_id")
    identity = key if span is None else raw.document(raw.element(span[0], b"_id", key[span[1] : span[2]]))
    return extended_json.relaxed(extended_json.decode(identity)["_id"], identity).decode()
