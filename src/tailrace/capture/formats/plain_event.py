"""Inserts, updates, replaces and deletes cut by their layout, which is faster than walking or decoding them.

Servers write the fields of these events in one order: `_id`, `operationType`, `clusterTime`, `wallTime` (6.0),
`fullDocument`, `ns`, `documentKey`, `updateDescription`. An event that looks different in any way (part of a
transaction, with pre-image, expanded, from a user's pipeline) is None here, and formats go their general way with it.
Both ways give the same bytes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import bson

from tailrace.capture.formats import extended_json
from tailrace.capture.formats.event_fields import Headers, headers_of, image_of_update, namespace_of
from tailrace.capture.record import Record

_match_head = re.compile(
    rb"....\x03_id\x00(....\x02_data\x00....([0-9A-F]{18,})\x00\x00)"
    rb"\x02operationType\x00....(insert|update|replace|delete)\x00"
    rb"\x11clusterTime\x00(........)(?:\x09wallTime\x00(........))?\x03(?:(fullDocument)|ns)\x00",
    re.DOTALL,
).match
_int32_at = Struct("<i").unpack_from
_increment_and_seconds = Struct("<II").unpack
_int64 = Struct("<q").unpack
_pack_int32 = Struct("<i").pack
_join = b"".join
_new = tuple.__new__  # makes a named tuple in a third of the time that its name takes
_NS = b"\x03ns\x00"
_KEY = b"\x03documentKey\x00"
_UPDATE = b"\x03updateDescription\x00"
_OBJECT_ID_KEY = b"\x16\x00\x00\x00\x07_id\x00"
_MOST_NAMESPACES = 10_000


class Namespace(NamedTuple):
    """A namespace in the spellings that records need."""

    name: str
    json: bytes
    tail: bytes
    """How an event goes on behind its document when its key is an ObjectId, up to the twelve bytes of that."""


class Operation(NamedTuple):
    """An operationType in the spellings that records need."""

    name: str
    header: tuple[str, bytes]
    json: bytes


class PlainEvent(NamedTuple):
    """The parts of an event; `token`, `document`, `key` and `update` are BSON documents."""

    token: bytes
    text: bytes
    """The hexadecimal digits of the token."""
    operation: Operation
    seconds: int
    increment: int
    wall_time: bytes | None
    document: bytes | None
    namespace: Namespace
    key: bytes
    update: bytes | None


_OPERATIONS = {
    name: Operation(name.decode(), ("operationType", name), b'"},"operationType":"%b","clusterTime":' % name)
    for name in (b"insert", b"update", b"replace", b"delete")
}
_NOWHERE = Namespace("", b"", b"\xff")


class Cutter:
    """Cuts the events of one stream; most have the namespace of the event before."""

    def __init__(self) -> None:
        self._namespaces: dict[bytes, Namespace] = {}
        self._last = _NOWHERE

    def cut(self, event: bytes) -> PlainEvent | None:
        """Cut an event into its parts, or give None when it is not laid out as expected."""
        head = _match_head(event)
        if head is None:
            return None
        token, text, operation, time, wall_time, first = head.groups()
        end = head.end()
        document = None
        if first is None:
            end -= 4  # where `ns` begins
        else:
            begin = end
            end += _int32_at(event, begin)[0]
            document = event[begin:end]
        namespace = self._last
        tail = namespace.tail
        if event.startswith(tail, end):
            end += len(tail) + 13
            key = event[end - 22 : end]
        else:
            other = self._other(event, end)
            if other is None:
                return None
            namespace, key, end = other
        update = None
        if event.startswith(_UPDATE, end):
            begin = end + 19
            end = begin + _int32_at(event, begin)[0]
            update = event[begin:end]
        if end != len(event) - 1:
            return None
        increment, seconds = _increment_and_seconds(time)
        return _new(
            PlainEvent,
            (token, text, _OPERATIONS[operation], seconds, increment, wall_time, document, namespace, key, update),
        )

    def _other(self, event: bytes, end: int) -> tuple[Namespace, bytes, int] | None:
        """Give the namespace and the key that begin there, and where they end."""
        if not event.startswith(_NS, end):
            return None
        begin = end + 4
        end = begin + _int32_at(event, begin)[0]
        ns = event[begin:end]
        namespace = self._namespaces.get(ns) or self._learn(ns)
        if not event.startswith(_KEY, end):
            return None
        self._last = namespace
        begin = end + 13
        end = begin + _int32_at(event, begin)[0]
        return namespace, event[begin:end], end

    def _learn(self, ns: bytes) -> Namespace:
        if len(self._namespaces) >= _MOST_NAMESPACES:
            self._namespaces.clear()
        decoded = bson.decode(ns)
        name, json = namespace_of({"ns": decoded}), extended_json.relaxed(decoded, ns)
        namespace = Namespace(name, json, _NS + ns + _KEY + _OBJECT_ID_KEY)
        self._namespaces[ns] = namespace
        return namespace


def plain_record(event: bytes, plain: PlainEvent, key: bytes, value: bytes, looks_up: bool) -> Record:
    """Make the record of an event, with the headers that all formats have."""
    token, text, operation, seconds, increment, _, document, namespace, _, update = plain
    headers: Headers = headers_of(text, b"%d:%d" % (seconds, increment), operation.header)
    if update is not None:
        headers.append(image_of_update(has_image=document is not None, is_later=looks_up))
    # What Record(...) does, in a third of the time.
    return _new(Record, (key, value, headers, namespace.name, operation.name, token, seconds << 32 | increment, event))


def rest_of_document(plain: PlainEvent) -> bytes | None:
    """Give the document without its `_id`, when that is the ObjectId of the key and stands first; otherwise None.

    The key is written without being decoded: making an object of it costs a tenth of what the whole event costs.
    """
    document, key = plain.document, plain.key
    if document is None or len(key) != 22 or not key.startswith(_OBJECT_ID_KEY) or document[4:21] != key[4:21]:
        return None
    return _pack_int32(len(document) - 17) + document[21:]


def relaxed_key(key: bytes) -> bytes:
    """Write a document key as relaxed Extended JSON; most are an ObjectId."""
    if len(key) == 22 and key.startswith(_OBJECT_ID_KEY):
        return b'{"_id":{"$oid":"%b"}}' % key[9:21].hex().encode()
    return extended_json.relaxed_document(key)


def relaxed_event(plain: PlainEvent, key: bytes, document: bytes | None, update: bytes | None) -> bytes | None:
    """Write the whole event as relaxed Extended JSON, given its key, document and update so written.

    None when only the general way can write it.
    """
    _, text, operation, seconds, increment, wall_time, _, namespace, _, _ = plain
    wall = b"" if wall_time is None else _wall_json(wall_time)
    if wall is None:
        return None
    return _join(
        (
            b'{"_id":{"_data":"', text, operation.json, b'{"$timestamp":{"t":%d,"i":%d}}' % (seconds, increment), wall,
            b"" if document is None else b',"fullDocument":', document or b"", b',"ns":', namespace.json,
            b',"documentKey":', key, b"" if update is None else b',"updateDescription":', update or b"", b"}",
        )
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _wall_json(wall_time: bytes) -> bytes | None:
    """Write a wall time; events that come together share it, because it has milliseconds only."""
    date = extended_json.date_text(_int64(wall_time)[0])
    return None if date is None else b',"wallTime":{"$date":"%b"}' % date.encode()
