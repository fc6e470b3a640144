"""Inserts, updates, replaces and deletes cut by their layout, which is faster than walking or decoding them.

Servers write the fields of these events in one order: `_id`, `operationType`, `clusterTime`, `wallTime` (6.0),
`fullDocument`, `ns`, `documentKey`, `updateDescription`. An event that looks different in any way (part of a
transaction, with pre-image, expanded, from a user's pipeline) is None here, and formats take the slow path with it.
Both ways give the same bytes.

This runs once for every event of a stream, so it finds places and copies nothing that a format may not need, and its
tuples are read by position.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

import bson

from tailrace.raw import extended_json

_match_head = re.compile(
    rb"....\x03_id\x00....\x02_data\x00....([0-9A-F]{18,})\x00\x00"
    rb"\x02operationType\x00....(insert|update|replace|delete)\x00"
    rb"\x11clusterTime\x00(........)(?:\x09wallTime\x00(........))?\x03(?:(fullDocument)|ns)\x00",
    re.DOTALL,
).match
_int32_at = Struct("<i").unpack_from
_increment_and_seconds = Struct("<II").unpack
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
    """What stands in a text between the document and the key."""
    tail: bytes
    """How an event goes on behind its document when its key is an ObjectId, up to the twelve bytes of that."""
    db: str
    coll: str


class Operation(NamedTuple):
    """An operationType in the spellings that records need."""

    name: str
    header: tuple[str, bytes]
    json: bytes
    """What stands in a text between the token and the cluster time."""


class PlainEvent(NamedTuple):
    """What an event is, and where its parts begin and end; a part that begins at 0 is not there."""

    text: bytes
    """The hexadecimal digits of the token."""
    operation: Operation
    seconds: int
    increment: int
    wall_time: bytes | None
    document: int
    document_end: int
    namespace: Namespace
    key: int
    key_end: int
    has_object_id: bool
    """Whether the key is an ObjectId and nothing else."""
    update: int
    """It ends one byte before the event does."""


_OPERATIONS = {
    name: Operation(name.decode(), ("operationType", name), b'"},"operationType":"%b","clusterTime":' % name)
    for name in (b"insert", b"update", b"replace", b"delete")
}
_NOWHERE = Namespace("", b"", b"\xff", "", "")


class Cutter:
    """Cuts the events of one stream; most have the namespace of the event before."""

    def __init__(self) -> None:
        self._namespaces: dict[bytes, Namespace] = {}
        self._last = _NOWHERE

    def cut(self, event: bytes) -> PlainEvent | None:
        """Find the parts of an event, or give None when it is not laid out as expected."""
        head = _match_head(event)
        if head is None:
            return None
        text, operation, time, wall_time, first = head.groups()
        end = head.end()
        document = update = 0
        if first is None:
            end -= 4  # where `ns` begins
        else:
            document = end
            end += _int32_at(event, document)[0]
        document_end = end
        namespace = self._last
        tail = namespace.tail
        if event.startswith(tail, end):
            key = end + len(tail) - 9
            end = key + 22
            has_object_id = True
        else:
            other = self._other(event, end)
            if other is None:
                return None
            namespace, key, end = other
            has_object_id = event.startswith(_OBJECT_ID_KEY, key)
        key_end = end
        if event.startswith(_UPDATE, end):
            update = end + 19
            end = update + _int32_at(event, update)[0]
        if end != len(event) - 1:
            return None
        increment, seconds = _increment_and_seconds(time)
        return _new(
            PlainEvent,
            (
                text, _OPERATIONS[operation], seconds, increment, wall_time, document, document_end, namespace,
                key, key_end, has_object_id, update,
            ),
        )  # fmt: skip

    def _other(self, event: bytes, end: int) -> tuple[Namespace, int, int] | None:
        """Give the namespace that begins there, and where the key behind it begins and ends."""
        if not event.startswith(_NS, end):
            return None
        begin = end + 4
        end = begin + _int32_at(event, begin)[0]
        ns = event[begin:end]
        namespace = self._namespaces.get(ns) or self._learn(ns)
        if namespace is None or not event.startswith(_KEY, end):
            return None
        self._last = namespace
        key = end + 13
        return namespace, key, key + _int32_at(event, key)[0]

    def _learn(self, ns: bytes) -> Namespace | None:
        """Spell a new namespace; None for one that a user's pipeline has changed."""
        decoded = bson.decode(ns)
        db, coll = decoded.get("db"), decoded.get("coll")
        if len(decoded) != 2 or not isinstance(db, str) or not isinstance(coll, str):
            return None
        if len(self._namespaces) >= _MOST_NAMESPACES:
            self._namespaces.clear()
        json = b',"ns":%b,"documentKey":' % extended_json.relaxed(decoded, ns)
        namespace = Namespace(f"{db}.{coll}", json, _NS + ns + _KEY + _OBJECT_ID_KEY, db, coll)
        self._namespaces[ns] = namespace
        return namespace
