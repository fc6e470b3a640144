"""The contract of formats: the bytes of an event in, the records for it out.

A format is given one kind of thing: a change event as BSON. A document of a snapshot comes as an event too, with
operationType `read` (`snapshot_event`), and a delete that recovery found as one with `recovered: true`
(`recovered_delete`), so that every format can express both and no format has a second entrance.

What a format would change without a word is found before it is written, so that the user's choice decides. Formats look
for it cheaply (does the decoded event give the same bytes, is there a name with a dollar), and only when that says so
the bytes are walked to name what is lost (`losses_of`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import bson
import orjson
from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.dbref import DBRef

from tailrace import raw
from tailrace.capture.record import Record
from tailrace.errors import BsonMalformed, EventUnconvertible
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json

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


DEPRECATED: Final = {raw.UNDEFINED: "undefined", raw.DB_POINTER: "a DBPointer", raw.SYMBOL: "a symbol"}
"""Types that Python turns into others."""
HEADER: Final = "unrepresentable"
"""The header of a record that was kept although its format could not carry everything."""


def losses_of(document: bytes, types: dict[int, str] = DEPRECATED) -> Iterator[str]:
    """Name what Extended JSON loses of a document: fields that are there twice, and what is read as something else."""
    try:
        yield from _losses(document, 0, "", types)
    except (BsonMalformed, RecursionError) as error:
        raise EventUnconvertible(f"the event is not BSON: {error}") from error


def _losses(document: bytes, start: int, path: str, types: dict[int, str]) -> Iterator[str]:
    names: set[bytes] = set()
    for kind, name, begin, end in raw.elements(document, start):
        inner = f"{path}.{name.decode(errors='replace')}" if path else name.decode(errors="replace")
        if name in names:
            yield f"{inner} is there twice"
        names.add(name)
        if kind in types:
            yield f"{inner} is {types[kind]}"
        elif kind == raw.DOCUMENT:
            if _is_read_as_a_value(document[begin:end]):
                yield f"{inner} looks like a value of Extended JSON"
            yield from _losses(document, begin, inner, types)
        elif kind == raw.ARRAY:
            yield from _losses(document, begin, inner, types)
        elif kind == raw.CODE_WITH_SCOPE:
            yield from _losses(document, raw.value_end(document, raw.STRING, begin + 4), inner, types)


_AS_READ: Final = json_util.JSONOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
"""As the jobs read Extended JSON: dates that Python lacks are values, too."""


def _is_read_as_a_value(document: bytes) -> bool:
    """Whether a reader of Extended JSON makes something else of a document, or refuses it."""
    if not any(name.startswith(b"$") for _, name, _, _ in raw.elements(document)):
        return False
    written: dict[str, Any] = orjson.loads(extended_json.relaxed_document(document))
    try:
        inner = {name: json_util.loads(orjson.dumps(value), json_options=_AS_READ) for name, value in written.items()}
        found = json_util.object_hook(dict(inner), _AS_READ)
    except Exception:
        return True
    # A reference is read as one, and written in the same way again.
    return found != inner and not (isinstance(found, DBRef) and list(found.as_doc()) == list(inner))


Header = tuple[str, bytes]
Headers = list[Header]

SCHEMA_VERSION: Final = b"1"
"""The version of what the headers and values look like; it grows when a consumer has to know."""
OP_CODES: Final = {"insert": "c", "update": "u", "replace": "u", "delete": "d", "read": "r"}
"""The one-letter operations that flat records and Debezium's have."""
RECOVERED_HEADER: Final = ("recovered", b"true")
KEY_HEADER: Final = ("key", b"documentKey")
"""Says that the chosen key field was missing, and the documentKey stands in."""

_SCHEMA_HEADER = ("schemaVersion", SCHEMA_VERSION)
_DELTA, _GONE, _LOOKUP, _POST = (("image", name) for name in (b"delta", b"missing", b"lookup", b"post"))


def headers_of(token: bytes, cluster_time: bytes, operation: Header) -> Headers:
    """Give the headers that every record has."""
    return [("token", token), ("clusterTime", cluster_time), operation, _SCHEMA_HEADER]


@lru_cache(maxsize=64)
def operation_header(operation: str) -> Header:
    """Give the header of an operationType."""
    return "operationType", operation.encode()


def image_of_update(*, has_image: bool, is_null: bool = False, is_later: bool = False) -> Header:
    """Give the header that says how much of its document an update has.

    `delta` is what changed, and nothing else was asked for. `post` is the document as the update left it, `lookup` one
    that was read later and may be newer. `missing` is one that was gone by then: no delete, which comes as one.
    """
    if is_null:
        return _GONE
    if not has_image:
        return _DELTA
    return _LOOKUP if is_later else _POST


_HINT = "Use the format bson, which carries everything, or set capture.unrepresentable to keep."


class Format(ABC):
    """Turns events into records. Has no state that depends on earlier events."""

    content_type: str = "application/octet-stream"

    def __init__(self, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        self._key = key
        self._tombstones = tombstones
        self.looks_up = False
        """Whether the documents of updates were looked up after the event (`updateLookup`)."""
        self.keeps_unrepresentable = False
        """Whether an event that this format cannot carry whole is written all the same, with a header that says so."""

    def records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event, in order: usually one, with a tombstone two, or none.

        Raises EventUnconvertible when the event cannot be expressed; the caller writes it to the dead letters. A user's
        pipeline may give any field of an event another type.
        """
        try:
            return self._records(event)
        except (bson.errors.BSONError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise EventUnconvertible(f"the event has no shape of an event: {type(error).__name__} {error}") from error

    @abstractmethod
    def _records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event."""

    def batch(self, events: Sequence[bytes]) -> Sequence[Record]:
        """Give the records for many events, in order; raises when any of them cannot be expressed."""
        return [record for event in events for record in self.records(event)]

    def _record(
        self, view: ChangeEvent, key: bytes | None, value: bytes | None, loss: str | None, is_key_missing: bool
    ) -> Record:
        """Make the record of an event, with the headers that all formats have."""
        operation = view.operation_type
        headers = headers_of(view.token_text, view.token_time.text.encode(), operation_header(operation))
        if operation == "update":
            headers.append(self._image_header(view))
        if view.is_recovered:
            headers.append(RECOVERED_HEADER)
        if is_key_missing:
            headers.append(KEY_HEADER)
        if operation == "rename" and (to := view.new_namespace) is not None:
            headers.append(("to", to.encode()))
        self._mark(headers, loss)
        return Record(key, value, headers, view.namespace, operation, view.raw)

    def _image_header(self, view: ChangeEvent) -> Header:
        """Say how much of its document an update has."""
        return image_of_update(
            has_image=view.has_full_document,
            is_null=view.has_null_document,
            is_later=self.looks_up or view.is_image_fetched,
        )

    def _mark(self, headers: Headers, loss: str | None) -> None:
        """Say in the headers what is lost of an event; EventUnconvertible when such events are refused."""
        if loss is None:
            return
        if not self.keeps_unrepresentable:
            raise EventUnconvertible(f"the format cannot carry the event: {loss}", hint=_HINT)
        headers.append((HEADER, loss.encode()))

    def _delivered(self, record: Record) -> Sequence[Record]:
        """Give the record, followed by a tombstone if it is a delete and tombstones are wanted."""
        if self._tombstones and record.operation == "delete":
            return record, record._replace(value=None)
        return (record,)


class DecodedFormat(Format):
    """Decodes each event once; a subclass writes the value, and the key if it is not relaxed Extended JSON."""

    content_type = "application/json"

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give one record or none, and a tombstone after a delete if they are wanted."""
        document = extended_json.decode(event)
        view = ChangeEvent(event, document)
        value = self._value(document, view)
        if value is None:
            return ()
        key, is_missing = self._key.of(document)
        loss = self._loss(document, view, value)
        return self._delivered(self._record(view, self._key_text(key, event), value, loss, is_missing))

    @abstractmethod
    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes | None:
        """Write the value; None when this format has no record for such an event."""

    def _loss(self, document: Mapping[str, Any], view: ChangeEvent, value: bytes) -> str | None:
        """Name what the value does not carry, if it shall be named."""
        return None

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        return extended_json.relaxed(key, event)
