"""A change event: one lazy view over its bytes.

Nothing is decoded before somebody asks for it, and then only what was asked for. Fields have the names of MongoDB's
documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import bson
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.errors import BsonMalformed, EventUnconvertible, ResumeTokenMissing
from tailrace.raw.cluster_time import ClusterTime

TOKEN_FIRST: Final = b"\x03_id\x00"
"""How an event begins when its first field is a resume token."""
_DATA: Final = b"\x02_data\0"
_MOST_NAMESPACES: Final = 10_000
_namespaces: dict[bytes, tuple[str | None, str | None]] = {}

Spans = dict[bytes, raw.Span]


class ChangeEvent:
    """An event of a change stream, or one that is shaped like it (a document of a snapshot, a recovered delete)."""

    __slots__ = ("_fields", "_spans", "_text", "raw")

    def __init__(self, event: bytes, fields: Mapping[str, Any] | None = None) -> None:
        """Look at an event; `fields` are the same decoded, with dates as DatetimeMS, where somebody has them."""
        self.raw = event
        self._fields = fields
        self._spans: Spans | None = None
        self._text: bytes | None = None

    @property
    def spans(self) -> Spans:
        """Where each top-level field is."""
        if self._spans is None:
            try:
                self._spans = {name: (kind, start, end) for kind, name, start, end in raw.elements(self.raw)}
            except BsonMalformed as error:
                raise EventUnconvertible(f"the event is not BSON: {error.message}") from error
        return self._spans

    @property
    def token(self) -> bytes:
        """The resume token in `_id`, as a BSON document."""
        return token_of(self.raw)

    @property
    def token_text(self) -> bytes:
        """The hexadecimal digits of the token."""
        if self._text is None:
            self._text = _token_text(token_of(self.raw))
        return self._text

    @property
    def token_time(self) -> ClusterTime:
        """The cluster time in the token, where it is at a fixed place: the first element of the KeyString."""
        text = self.token_text
        try:
            return ClusterTime(text[2:18], 16)
        except ValueError:
            raise EventUnconvertible(f"the token {text!r} begins with no cluster time") from None

    @property
    def cluster_time(self) -> ClusterTime:
        """`clusterTime`; for an event without it that of the token."""
        span = self.spans.get(b"clusterTime")
        if span is None or span[0] != raw.TIMESTAMP:
            return self.token_time
        return ClusterTime(int.from_bytes(self.raw[span[1] : span[2]], "little"))

    @property
    def wall_time(self) -> int | None:
        """`wallTime` in milliseconds since 1970; servers before 6.0 have none."""
        if self._fields is not None:
            known = self._fields.get("wallTime")
            return int(known) if isinstance(known, DatetimeMS) else None
        span = self.spans.get(b"wallTime")
        return None if span is None or span[0] != raw.DATE else raw.int64_at(self.raw, span[1])

    @property
    def operation_type(self) -> str:
        """`operationType`; empty where a pipeline has removed it."""
        if self._fields is not None:
            known = self._fields.get("operationType")
            return known if isinstance(known, str) else ""
        span = self.spans.get(b"operationType")
        if span is None or span[0] != raw.STRING:
            return ""
        return self.raw[span[1] + 4 : span[2] - 1].decode("utf-8", "replace")

    @property
    def required_operation_type(self) -> str:
        """`operationType`, for those who can do nothing without."""
        found = self.operation_type
        if not found:
            raise EventUnconvertible("the event has no operationType", hint="Keep it in every stage of the pipeline.")
        return found

    @property
    def database_and_collection(self) -> tuple[str | None, str | None]:
        """The parts of `ns`; the few namespaces of a stream are decoded once."""
        if self._fields is not None:
            parts = self._fields.get("ns")
            return (parts.get("db"), parts.get("coll")) if isinstance(parts, dict) else (None, None)
        ns = self.document(b"ns")
        return (None, None) if ns is None else _parts_of_namespace(ns)

    @property
    def namespace(self) -> str:
        """`db.coll`, `db` of an event about a database, and nothing of one about the cluster."""
        database, collection = self.database_and_collection
        return f"{database}.{collection}" if collection is not None else database or ""

    @property
    def new_namespace(self) -> str | None:
        """`to`, the new name of a renamed collection, as `db.coll`."""
        to = self.document(b"to")
        if to is None:
            return None
        database, collection = _parts_of_namespace(to)
        return f"{database}.{collection}"

    @property
    def document_key(self) -> bytes | None:
        """`documentKey`; None for events about a collection or database."""
        return self.document(b"documentKey")

    @property
    def full_document(self) -> bytes | None:
        """`fullDocument`; None where it is missing, and where a lookup found nothing."""
        return self.document(b"fullDocument")

    @property
    def full_document_before_change(self) -> bytes | None:
        """`fullDocumentBeforeChange`."""
        return self.document(b"fullDocumentBeforeChange")

    @property
    def update_description(self) -> bytes | None:
        """`updateDescription`."""
        return self.document(b"updateDescription")

    @property
    def is_recovered(self) -> bool:
        """Whether it is a delete that no server sent, found when a gap was closed."""
        return self._has("recovered")

    @property
    def is_image_fetched(self) -> bool:
        """Whether its document was read after the event, because the event was too large to be sent."""
        return self._has("imageFetched")

    @property
    def has_null_document(self) -> bool:
        """Whether the document was looked up and was gone."""
        if self._fields is not None:
            return self._fields.get("fullDocument", True) is None
        span = self.spans.get(b"fullDocument")
        return span is not None and span[0] == raw.NULL

    @property
    def has_full_document(self) -> bool:
        """Whether there is a `fullDocument`, be it null."""
        return self._has("fullDocument")

    def document(self, name: bytes) -> bytes | None:
        """Give a field that is a document."""
        span = self.spans.get(name)
        return None if span is None or span[0] != raw.DOCUMENT else self.raw[span[1] : span[2]]

    def _has(self, name: str) -> bool:
        return name in self._fields if self._fields is not None else name.encode() in self.spans


class EventBatch(Protocol):
    """Some events in a row, or none, and the position behind them."""

    @property
    def events(self) -> Sequence[bytes]:
        """The events as BSON documents."""

    @property
    def token(self) -> bytes | None:
        """Where to resume after the whole batch."""

    @property
    def operation_time(self) -> Timestamp | None:
        """How far the server was."""


class EventStream(Protocol):
    """An open stream, for one thread."""

    def batches(self) -> Iterator[EventBatch]:
        """Give batch after batch, empty ones too; ends when the stream was invalidated or closed."""

    def close(self) -> None:
        """Free the cursor on the server."""


@dataclass(frozen=True, slots=True)
class StreamOf:
    """A stream made from another source of batches, and what frees that."""

    make_batches: Callable[[], Iterator[EventBatch]]
    free: Callable[[], None]

    def batches(self) -> Iterator[EventBatch]:
        """Give batch after batch."""
        return self.make_batches()

    def close(self) -> None:
        """Free the cursor on the server."""
        self.free()


def _parts_of_namespace(ns: bytes) -> tuple[str | None, str | None]:
    known = _namespaces.get(ns)
    if known is None:
        if len(_namespaces) >= _MOST_NAMESPACES:
            _namespaces.clear()
        try:
            decoded = bson.decode(ns)
        except bson.errors.BSONError:
            raise EventUnconvertible("the namespace of the event cannot be decoded") from None
        known = _namespaces[ns] = decoded.get("db"), decoded.get("coll")
    return known


def _token_text(token: bytes) -> bytes:
    if token[4:11] == _DATA:
        return token[15 : 14 + raw.int32_at(token, 11)]
    found = raw.field(token, b"_data")
    if found is None or found.kind != raw.BINARY:
        raise EventUnconvertible("the token of the event has no _data")
    return raw.binary_at(found.data)[1].hex().upper().encode()


def with_token_fields(event: bytes, fields: bytes) -> bytes:
    """Put more elements at the end of an event's resume token; an event without one stays as it is."""
    span = raw.find(event, b"_id")
    if span is None:
        return event
    _, start, end = span
    return raw.document(event[4:start], raw.append(event[start:end], fields), event[end:-1])


def token_of(event: bytes) -> bytes:
    """Give the resume token in the event's `_id`, as a BSON document."""
    if event[4:9] == TOKEN_FIRST:
        return event[9 : 9 + raw.int32_at(event, 9)]
    found = raw.field(event, b"_id")
    if found is None or found.kind != raw.DOCUMENT:
        raise ResumeTokenMissing(
            "Cannot provide resume functionality when the resume token is missing: an event has no document as its _id."
        )
    return found.data
