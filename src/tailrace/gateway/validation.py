"""What the server refuses, refused by the server: whoever asks, and in the words of its version.

A change stream that a client opens is opened upstream too, without reading anything, and closed again. Views, read
concerns, transactions, API versions, unknown fields and privileges are so judged by whoever knows them best. A
`getMore` that is not of the usual form is sent upstream as well: a server that finds nothing wrong with it finds no
such cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import bson

from tailrace import raw, server_codes
from tailrace.errors import ServerUnreachable
from tailrace.gateway.command import API, Command
from tailrace.gateway.upstream import Upstream, UpstreamConnection, error_code
from tailrace.gateway.wire import MORE_TO_COME, Message
from tailrace.token import shard_positions

if TYPE_CHECKING:
    from tailrace.gateway.conversation import Conversation
    from tailrace.gateway.cursors import Cursor

_AT_ONCE: Final = 8
_SAME_FOR_ALL: Final = frozenset(
    {b"aggregate", b"pipeline", b"cursor", b"comment", b"readConcern", b"$db", b"$readPreference"}
)
"""What makes a change stream one that everybody may open alike."""
_OF_THE_CLIENT: Final = (b"lsid", b"$clusterTime")
_MAJORITY: Final = raw.document(raw.element(raw.STRING, b"level", raw.string("majority")))
_USUAL: Final[dict[bytes, int]] = {
    b"getMore": raw.INT64, b"collection": raw.STRING, b"$db": raw.STRING, b"lsid": raw.DOCUMENT,
    b"$clusterTime": raw.DOCUMENT, b"$readPreference": raw.DOCUMENT,
}  # fmt: skip
"""The fields of a `getMore` that have nothing to be judged in them, by their types."""
_LARGEST: Final = 2**31 - 1
_SESSION: Final = raw.document(raw.element(raw.BINARY, b"id", raw.binary(4, bytes(16))))
_BEFORE_UUID: Final = _SESSION[:-17]
_PREFERENCES: Final = frozenset(
    raw.document(raw.element(raw.STRING, b"mode", raw.string(mode)))
    for mode in ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")
)


class Validation:
    """Asks the upstream on a few connections that all clients share, where it does not matter who asks."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._idle: list[UpstreamConnection] = []
        self._next: dict[bytes, asyncio.Task[bytes | None]] = {}
        """Questions that have not been asked yet, for all who want to know the same by then."""

    async def refusal_of_open(self, conversation: Conversation, asked: Command) -> bytes | None:
        """Let the upstream open a change stream without reading, and give its refusal if it has one."""
        body = _without_reading(asked.message.body)
        if await self._upstream.requires_auth() or not _is_same_for_all(body):
            return await rehearse(await conversation.connected(), body)
        question = raw.without(body, *_OF_THE_CLIENT)
        waiting = self._next.get(question)
        if waiting is None:
            waiting = self._next[question] = asyncio.create_task(self._ask(question))
        return await asyncio.shield(waiting)

    @staticmethod
    def is_usual_get_more(conversation: Conversation, asked: Command, cursor: Cursor) -> bool:
        """Return whether a `getMore` is as drivers send it, for the cursor that it names."""
        has_comments = conversation.gateway.hub.dialect.since(4, 4)
        collection = asked.field(b"collection")
        is_own = collection is not None and collection.data == cursor.collection and not asked.message.sequences
        return is_own and _is_usual_get_more(asked, has_comments=has_comments, knows_api=asked.api == cursor.api)

    @staticmethod
    async def refusal_of_get_more(conversation: Conversation, asked: Command) -> bytes | None:
        """Let the upstream judge a `getMore` that is not as drivers send it."""
        upstream = await conversation.connected()
        reply = await upstream.ask(replace(asked.message, flags=0))
        return None if reply is None or error_code(reply.body) in (None, server_codes.CURSOR_NOT_FOUND) else reply.body

    def close(self) -> None:
        """Hang up."""
        for connection in self._idle:
            connection.close()

    async def _ask(self, question: bytes) -> bytes | None:
        """Ask when it is this question's turn; who comes later needs an answer of its own, for things change."""
        try:
            await self._slots.acquire()
        finally:
            del self._next[question]
        try:
            return await self._ask_now(question)
        finally:
            self._slots.release()

    async def _ask_now(self, question: bytes) -> bytes | None:
        """Ask on a connection that was used before, which may lead to a server that is no primary any more."""
        if self._idle:
            try:
                refusal = await self._ask_on(self._idle.pop(), question)
            except ServerUnreachable:
                refusal = None
            else:
                if refusal is None or error_code(refusal) not in server_codes.NOT_PRIMARY:
                    return refusal
            for connection in self._idle:
                connection.close()
            self._idle.clear()
        return await self._ask_on(await self._upstream.connect(), question)

    async def _ask_on(self, connection: UpstreamConnection, question: bytes) -> bytes | None:
        is_whole = False
        try:
            refusal = await rehearse(connection, question)
            is_whole = True
        finally:
            if is_whole:
                self._idle.append(connection)
            else:
                connection.close()
        return refusal


async def rehearse(upstream: UpstreamConnection, body: bytes) -> bytes | None:
    """Open a change stream upstream and close it again; give the refusal if there is one."""
    reply = await upstream.ask(Message(body, request_id=1))
    if reply is None:
        return None
    if error_code(reply.body) is not None:
        return reply.body
    answer, command = (raw.to_python(raw.DOCUMENT, each) for each in (reply.body, body))
    opened = answer["cursor"]
    kill = {"killCursors": opened["ns"].partition(".")[2], "cursors": [opened["id"]], "$db": command["$db"]}
    kill |= {name: command[name] for name in ("lsid",) if name in command}
    await upstream.ask(Message(bson.encode(kill), request_id=1, flags=MORE_TO_COME))
    return None


def _without_reading(body: bytes) -> bytes:
    """Give the command with an empty first batch, and without the positions of shards that only the gateway knows."""
    parts = []
    for kind, name, begin, end in raw.elements(body):
        data = body[begin:end]
        if name == b"cursor" and kind == raw.DOCUMENT:
            data = _with_empty_batch(data)
        elif name == b"pipeline" and kind == raw.ARRAY and shard_positions.FIELD.encode() in data:
            data = _without_positions(data)
        parts.append(raw.element(kind, name, data))
    return raw.document(*parts)


def _with_empty_batch(cursor: bytes) -> bytes:
    """Give the cursor's options with a batch size of 0 in the place of any that a server takes.

    All else stays as it came, also what stands twice: that is the server's to refuse.
    """
    parts, is_given = [], False
    for kind, name, begin, end in raw.elements(cursor):
        data = cursor[begin:end]
        if name == b"batchSize":
            is_given = True
            number = raw.number_at(data, kind)
            if number is not None and 0 <= number <= _LARGEST:
                data = bytes(len(data))
        parts.append(raw.element(kind, name, data))
    if not is_given:
        parts.append(raw.element(raw.INT32, b"batchSize", raw.int32(0)))
    return raw.document(*parts)


def _without_positions(pipeline: bytes) -> bytes:
    stages = raw.to_python(raw.ARRAY, pipeline)
    stage = stages[0]["$changeStream"]
    for name in ("resumeAfter", "startAfter"):
        if isinstance(stage, dict) and isinstance(stage.get(name), dict):
            stage[name].pop(shard_positions.FIELD, None)
    return raw.from_python(stages).data


def _is_same_for_all(body: bytes) -> bool:
    """Return whether the answer depends neither on who asks nor on what else happens in a session."""
    for kind, name, begin, end in raw.elements(body):
        if name in _OF_THE_CLIENT:
            if kind != raw.DOCUMENT or not _FORMS[name](body[begin:end]):
                return False
        elif name == b"readConcern":
            if body[begin:end] != _MAJORITY:
                return False
        elif name not in _SAME_FOR_ALL and name not in API:
            return False
    return True


def _is_session(lsid: bytes) -> bool:
    """Return whether an `lsid` is what drivers send: a UUID and nothing else."""
    return len(lsid) == len(_SESSION) and lsid.startswith(_BEFORE_UUID)


def _is_cluster_time(cluster_time: bytes) -> bool:
    time = raw.field(cluster_time, b"clusterTime")
    return time is not None and time.kind == raw.TIMESTAMP


def _is_usual_get_more(asked: Command, *, has_comments: bool, knows_api: bool) -> bool:
    """Return whether there is nothing to be judged in a `getMore`, whose API version may be known to be right."""
    body = asked.message.body
    for name, (kind, begin, end) in asked.spans.items():
        if name in (b"batchSize", b"maxTimeMS"):
            number = raw.number_at(body, kind, begin) if kind in (raw.INT32, raw.INT64) else None
            if number is None or not (name == b"batchSize") <= number <= _LARGEST:
                return False
        elif name in _USUAL:
            form = _FORMS.get(name)
            if _USUAL[name] != kind or (form is not None and not form(body[begin:end])):
                return False
        elif not (has_comments and name == b"comment") and not (knows_api and name in API):
            return False
    return True


_FORMS: Final[dict[bytes, Callable[[bytes], bool]]] = {
    b"lsid": _is_session, b"$clusterTime": _is_cluster_time, b"$readPreference": _PREFERENCES.__contains__,
}  # fmt: skip
"""What else than their type is looked at, of the fields that drivers send always."""
