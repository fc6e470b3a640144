"""The contract of decoders: a record of a topic in, the change event or the state in it out.

The decoder of a format stands beside its encoder, in one file. Every one gives the BSON of a change event, so that one
piece of code makes columns of it. What a format has dropped cannot come back: `json` writes an int64 like an int32,
`flat` has chosen fields only, and Debezium's own records have no resume token. Events without one get a token of their
place in the topic: it sorts as Kafka's offsets do, so of two records of one key the later is the newer, which is the
order that Kafka guarantees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import bson
import orjson
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.capture.formats.format import OP_CODES
from tailrace.errors import EventUnconvertible, TailraceError
from tailrace.raw import extended_json
from tailrace.token import ResumeToken

Plain = Mapping[str, Any]
"""A document as JSON values, in the spelling that a format's documents are compared in."""

OPERATIONS: Mapping[str, str] = {"c": "insert", "u": "update", "d": "delete", "r": "read"}
"""The operations behind the letters of flat records and Debezium's."""
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    bson.errors.BSONError,
)
"""What decoding any bytes at all may raise; numbers out of range and misspelt decimals are arithmetic errors."""
_FULL_NAMES = set(OP_CODES) | {"drop", "rename", "dropDatabase", "invalidate"}


class KafkaRecord(NamedTuple):
    """One record of a topic."""

    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = MappingProxyType({})

    @property
    def token(self) -> bytes | None:
        """The resume token in the headers of our own records, as BSON."""
        text = self.headers.get("token")
        return None if text is None else ResumeToken.from_hex(text).to_bson()

    @property
    def location(self) -> bytes:
        """A token that sorts by offset; it is no position in MongoDB."""
        return raw.document(raw.element(raw.STRING, b"_data", raw.string(f"82{self.offset:016X}")))

    @property
    def operation(self) -> str | None:
        """The operation in the headers of our own records."""
        found = self.headers.get("operationType")
        return None if found is None else found.decode()


class ReadEvent(NamedTuple):
    """An event out of a record."""

    bytes: bytes
    fields: Mapping[str, Any] | None = None
    """The same decoded, with dates as DatetimeMS, where reading it brought that about."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """What one record of a topic says of the state."""

    namespace: str
    operation: str
    document_key: Plain | None
    """The decoded documentKey; None for events about a collection or database."""
    document: Plain | None = None
    """The whole document after the event, when the record has it."""
    update: Plain | None = None
    """updateDescription, when there is one."""
    to: str | None = None
    """The new name of a renamed collection, where the record has it."""


class RecordDecoder(ABC):
    """Understands the records of one format."""

    name: ClassVar[str]
    is_whole_in_value: ClassVar[bool] = False
    """Whether values are whole events, so that keys and headers say nothing that is not in there."""
    is_event_in_value: ClassVar[bool] = False
    """Whether a value is the BSON of an event itself."""
    has_documents: ClassVar[bool] = True
    has_events: ClassVar[bool] = True
    """Whether a record can become its event again without anything else, as a schema registry."""

    @abstractmethod
    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record, whose key is the documentKey, says of the state."""

    @abstractmethod
    def _event(self, record: KafkaRecord) -> ReadEvent | None:
        """Give the event of a record; None for one that is no event."""

    def event(self, record: KafkaRecord) -> ReadEvent | None:
        """Give the event of a record, None for one that is no event; EventUnconvertible when it cannot be read."""
        try:
            return self._event(record)
        except (TailraceError, *_UNREADABLE) as error:
            raise self._refusal(f"record {record.topic}/{record.partition}@{record.offset}", error) from error

    def read(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record, whose key is the documentKey, says of the state; EventUnconvertible for foreign ones."""
        try:
            return self._state(key, value)
        except (TailraceError, *_UNREADABLE) as error:
            raise self._refusal(f"a record with the key {key[:100]!r}", error) from error

    def _refusal(self, which: str, error: Exception) -> EventUnconvertible:
        return EventUnconvertible(
            f"{which} is not of the format {self.name}: {type(error).__name__} {error}",
            hint="Check the format, or let bad records go to the dead letters.",
        )

    def spelled(self, document: bytes) -> Plain:
        """Give a document of the source (BSON) as this format's documents are compared."""
        spelled: Plain = orjson.loads(extended_json.relaxed_document(document))
        return spelled


def operation_of(record: KafkaRecord, code: str, *, is_replace: bool) -> str:
    """Give operationType: the header has it; a letter alone leaves open whether `u` replaced the document."""
    if record.operation is not None:
        return record.operation
    if code == "u":
        return "replace" if is_replace else "update"
    if code not in OPERATIONS and code not in _FULL_NAMES:
        raise ValueError(f"there is no operation {code!r}")
    return OPERATIONS.get(code, code)


def event_of_parts(
    record: KafkaRecord, operation: str, time: Timestamp, namespace: Mapping[str, Any], parts: Mapping[str, Any]
) -> ReadEvent:
    """Make an event of a record that does not have the whole event."""
    token = record.token or record.location
    fields = {"operationType": operation, "clusterTime": time, "ns": namespace}
    given = {name: value for name, value in parts.items() if value is not None}
    body = raw.body(raw.encode({**fields, **given}))
    return ReadEvent(raw.document(raw.element(raw.DOCUMENT, b"_id", token), body))


def state_of_event(event: Mapping[str, Any], key: Plain | None) -> StoredRecord:
    """Give what an event says of the state; its documents are in the spelling of the format, its key is decoded."""
    ns, to = event.get("ns") or {}, event.get("to")
    return StoredRecord(
        f"{ns['db']}.{ns['coll']}" if "coll" in ns else str(ns.get("db", "")),
        event["operationType"],
        key,
        event.get("fullDocument"),
        event.get("updateDescription"),
        f"{to['db']}.{to['coll']}" if to else None,
    )
