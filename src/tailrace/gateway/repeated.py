"""A getMore that is the last one again.

A client that watches asks for more again and again, in the same bytes: only the cluster time, which drivers pass on as
they hear it, differs. What was parsed, checked and found usual is then known already, for the same bytes mean the same.
What may have changed since is still checked: who the client is, what it may see, and whether its cursor is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import bson
from bson import Int64, Timestamp

from tailrace import raw
from tailrace.gateway.command import Command
from tailrace.gateway.wire import Message

if TYPE_CHECKING:
    from tailrace.gateway.cursors import Cursor
    from tailrace.gateway.identity import Identity

_HASH: Final = bytes(20)
_CLUSTER_TIME: Final = bson.encode({"clusterTime": Timestamp(0, 0), "signature": {"hash": _HASH, "keyId": Int64(0)}})
"""As servers make them and drivers pass them on; everything but three values is the same in each."""


def _values() -> tuple[tuple[int, int], ...]:
    """Return where in a cluster time its values stand."""
    paths = (b"clusterTime",), (b"signature", b"hash"), (b"signature", b"keyId")
    found = (raw.find_path(_CLUSTER_TIME, *path) for path in paths)
    time, signed, key = (span[1:] for span in found if span is not None)
    return time, (signed[1] - len(_HASH), signed[1]), key


_VALUES: Final = _values()


class RepeatedGetMore(NamedTuple):
    """The last getMore of a client, and what came of it."""

    size: int
    fixed: tuple[tuple[int, int, bytes], ...]
    """The parts of its body that are the same in the next one, and where they stand."""
    cursor: Cursor
    identity: Identity
    """Who asked."""
    max_events: int | None
    seconds: float

    @classmethod
    def of(
        cls, asked: Command, cursor: Cursor, identity: Identity, max_events: int | None, seconds: float
    ) -> RepeatedGetMore:
        """Remember a getMore that was found to be right."""
        body = asked.message.body
        return cls(
            len(body), tuple(_fixed(body, asked.spans.get(b"$clusterTime"))), cursor, identity, max_events, seconds
        )

    def fits(self, message: Message) -> bool:
        """Return whether a message is the same getMore."""
        body = message.body
        if len(body) != self.size or message.sequences or message.legacy_database is not None:
            return False
        return all(body[begin:end] == content for begin, end, content in self.fixed)


def _fixed(body: bytes, cluster_time: raw.Span | None) -> list[tuple[int, int, bytes]]:
    """Cut out what is the same in the next command: all but the values of the cluster time."""
    parts, begin = [], 0
    if cluster_time is not None and _is_as_servers_make_it(body[cluster_time[1] : cluster_time[2]]):
        for start, end in _VALUES:
            parts.append((begin, cluster_time[1] + start, body[begin : cluster_time[1] + start]))
            begin = cluster_time[1] + end
    parts.append((begin, len(body), body[begin:]))
    return parts


def _is_as_servers_make_it(cluster_time: bytes) -> bool:
    blank = bytearray(cluster_time)
    if len(blank) != len(_CLUSTER_TIME):
        return False
    for begin, end in _VALUES:
        blank[begin:end] = bytes(end - begin)
    return blank == _CLUSTER_TIME
