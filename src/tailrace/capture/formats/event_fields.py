"""The fields of an event that every format needs, found in its bytes or in its decoded form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import bson

from tailrace import raw
from tailrace.capture.record import Record, new_record
from tailrace.driver.batch import token_of
from tailrace.errors import BsonMalformed, EventUnconvertible

SCHEMA_VERSION = b"1"
"""The version of what the headers and values look like; it grows when a consumer has to know."""
OP_CODES = {"insert": "c", "update": "u", "replace": "u", "delete": "d", "read": "r"}
"""The one-letter operations that flat records and Debezium's have."""

_SCHEMA_HEADER = ("schemaVersion", SCHEMA_VERSION)
_RECOVERED_HEADER = ("recovered", b"true")
_KEY_HEADER = ("key", b"documentKey")
_DELTA, _MISSING, _LOOKUP, _POST = (("image", name) for name in (b"delta", b"missing", b"lookup", b"post"))
_DATA = b"\x02_data\0"
_MOST_NAMESPACES = 10_000
_namespaces: dict[bytes, str] = {}
_operation_headers: dict[str, tuple[str, bytes]] = {}


class Place(NamedTuple):
    """Where an event is in its stream."""

    token: bytes
    text: bytes
    """The hexadecimal digits of the token."""
    cluster_time: int

    @classmethod
    def of(cls, event: bytes) -> Place:
        """Read it off the token, where the cluster time is at a fixed place: the first element of the KeyString."""
        token = token_of(event)
        text = _token_text(token)
        try:
            return cls(token, text, int(text[2:18], 16))
        except ValueError:
            raise EventUnconvertible(f"the token {text!r} begins with no cluster time") from None


def make_record(
    event: bytes,
    place: Place,
    key: bytes | None,
    value: bytes | None,
    operation: str,
    namespace: str,
    *,
    is_recovered: bool = False,
    is_key_missing: bool = False,
    image: Header | None = None,
) -> Record:
    """Make the record of an event, with the headers that all formats have."""
    _, text, time = place
    operation_header = _operation_headers.get(operation)
    if operation_header is None:
        operation_header = _operation_headers[operation] = ("operationType", operation.encode())
    headers = headers_of(text, b"%d:%d" % (time >> 32, time & 0xFFFFFFFF), operation_header)
    if image is not None:
        headers.append(image)
    if is_recovered:
        headers.append(_RECOVERED_HEADER)
    if is_key_missing:
        headers.append(_KEY_HEADER)
    return new_record(Record, (key, value, headers, namespace, operation, event))


Header = tuple[str, bytes]
Headers = list[Header]


def image_of_update(*, has_image: bool, is_null: bool = False, is_later: bool = False) -> Header:
    """Give the header that says what an update tells of its document.

    `delta` is what changed, and nothing else was asked for. `post` is the document as the update left it, `lookup` one
    that was read later and may be newer. `missing` is one that was gone by then: no delete, which comes as one.
    """
    if is_null:
        return _MISSING
    if not has_image:
        return _DELTA
    return _LOOKUP if is_later else _POST


def headers_of(token: bytes, cluster_time: bytes, operation: tuple[str, bytes]) -> Headers:
    """Give the headers that every record has."""
    return [("token", token), ("clusterTime", cluster_time), operation, _SCHEMA_HEADER]


def _token_text(token: bytes) -> bytes:
    """Give the hexadecimal digits of a token."""
    if token[4:11] == _DATA:
        return token[15 : 14 + int.from_bytes(token[11:15], "little")]
    found = raw.field(token, b"_data")
    if found is None or found.kind != raw.BINARY:
        raise EventUnconvertible("the token of the event has no _data")
    return raw.binary_at(found.data)[1].hex().upper().encode()


def namespace_of(event: Mapping[str, Any]) -> str:
    """Give `db.coll` of a decoded event, `db` of one about a database, and nothing of one about the cluster."""
    ns = event.get("ns")
    if not ns:
        return ""
    return f"{ns['db']}.{ns['coll']}" if "coll" in ns else str(ns["db"])


Spans = dict[bytes, raw.Span]


def spans_of(event: bytes) -> Spans:
    """Give where each top-level field of an event is, without decoding any."""
    try:
        return {name: (kind, start, end) for kind, name, start, end in raw.elements(event)}
    except BsonMalformed as error:
        raise EventUnconvertible(f"the event is not BSON: {error.message}") from error


def text_at(event: bytes, span: raw.Span) -> str:
    """Give a string field."""
    return event[span[1] + 4 : span[2] - 1].decode()


def raw_namespace(event: bytes, spans: Spans) -> str:
    """Give what `namespace_of` gives, from bytes; the few namespaces of a stream are decoded once."""
    span = spans.get(b"ns")
    if span is None:
        return ""
    data = event[span[1] : span[2]]
    known = _namespaces.get(data)
    if known is None:
        if len(_namespaces) >= _MOST_NAMESPACES:
            _namespaces.clear()
        known = _namespaces[data] = namespace_of({"ns": bson.decode(data)})
    return known
