"""Cursors by pymongo's public API alone, for releases that have changed what `private` uses.

Slower: each batch is asked for when it is wanted, never ahead, and a getMore goes to whichever server the read
preference selects. Where several fit, that may be another one than the cursor's: the answer, that it has no such
cursor, lets the stream resume.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import AutoReconnect, ConnectionFailure, PyMongoError

from tailrace.client.commands import Aggregate, GetMore, Reply
from tailrace.client.reply import ReplyReader
from tailrace.client.shared import AsyncHandle, Handle, client_of, opened, plain_errors, raw_codec

_RAW: Final[CodecOptions[RawBSONDocument]] = CodecOptions(RawBSONDocument)


class _Cursor:
    """What both kinds of cursor know of theirs."""

    may_read_ahead = False

    def __init__(self, handle: Handle | AsyncHandle, session: Any, reply: Reply) -> None:
        self.reader = ReplyReader(reply.max_wire_version, handle.codec_options, is_monitored=False)
        self._session = session
        self._id = reply.cursor_id
        database, _, self._collection = reply.namespace.partition(".")
        self._database = client_of(handle)[database]
        self._read: dict[str, Any] = {"codec_options": raw_codec(handle), "read_preference": handle.read_preference}

    def _noted(self, answer: Any) -> Reply:
        self.reader.read(answer.raw)
        reply = self.reader.reply
        assert reply is not None  # an error was raised
        self._id = reply.cursor_id
        return reply

    def _kill(self) -> dict[str, Any] | None:
        """Give the command that frees the cursor on the server, once."""
        number, self._id = self._id, 0
        return {"killCursors": self._collection, "cursors": [number]} if number else None


class RawCursor(_Cursor):
    """A server's cursor, read batch by batch."""

    def get_more(self, command: GetMore) -> Reply:
        """Ask for the next batch."""
        with plain_errors():
            return self._noted(self._database.command(_get_more(command), session=self._session, **self._read))

    def close(self) -> None:
        """Kill the cursor."""
        command = self._kill()
        if command is not None:
            with suppress(PyMongoError):
                self._database.command(command, session=self._session)

    def abandon(self) -> None:
        """Leave the cursor to the server, which ends it when nobody asks for ten minutes."""
        self._id = 0


class AsyncRawCursor(_Cursor):
    """The same for asynchronous clients."""

    async def get_more(self, command: GetMore) -> Reply:
        """Ask for the next batch."""
        with plain_errors():
            return self._noted(await self._database.command(_get_more(command), session=self._session, **self._read))

    async def close(self) -> None:
        """Kill the cursor."""
        command = self._kill()
        if command is not None:
            with suppress(PyMongoError):
                await self._database.command(command, session=self._session)

    def abandon(self) -> None:
        """Leave the cursor to the server, which ends it when nobody asks for ten minutes."""
        self._id = 0


def open_cursor(handle: Handle, command: Aggregate, session: Any) -> tuple[RawCursor, Reply]:
    """Run the aggregate on a server of the read preference and keep what it opened."""
    client = client_of(handle)
    database, arguments = client[command.database], _aggregate(handle, command, session)
    with plain_errors():
        try:
            answer = database.command(**arguments)
        except ConnectionFailure:
            if not client.options.retry_reads:
                raise
            answer = database.command(**arguments)
    reply = opened(handle, answer, _wire_version(client))[2]
    return RawCursor(handle, session, reply), reply


async def open_async_cursor(handle: AsyncHandle, command: Aggregate, session: Any) -> tuple[AsyncRawCursor, Reply]:
    """Run the aggregate on a server of the read preference and keep what it opened."""
    client = client_of(handle)
    database, arguments = client[command.database], _aggregate(handle, command, session)
    with plain_errors():
        try:
            answer = await database.command(**arguments)
        except ConnectionFailure:
            if not client.options.retry_reads:
                raise
            answer = await database.command(**arguments)
    reply = opened(handle, answer, _wire_version(client))[2]
    return AsyncRawCursor(handle, session, reply), reply


def start_session(client: MongoClient[Any] | AsyncMongoClient[Any]) -> Any:
    """Make a session for one stream."""
    return client.start_session(causal_consistency=False)


def end_session(session: Any) -> Awaitable[None] | None:
    """Give the stream's session back; of an asynchronous client when that is awaited."""
    ended: Awaitable[None] | None = session.end_session()
    return ended


def is_time_limited() -> bool:
    """Whether a time limit is in force here: not to be known, and of no interest where nothing is asked for ahead."""
    return True


def time_limit(seconds: float) -> AbstractContextManager[Any]:
    """Limit what happens inside; a `pymongo.timeout()` around it that ends earlier still does."""
    return pymongo.timeout(seconds)


class CursorConnection:
    """Commands on a cursor of the primary's `local`, each sent when its reply is wanted."""

    is_answering = False

    def __init__(self, client: MongoClient[Any]) -> None:
        self._client = client
        self._session = client.start_session(causal_consistency=False)
        self._command: dict[str, Any] = {}
        self._is_closed = False

    def ask(self, command: dict[str, Any], *, may_go_on: bool = False) -> None:
        """Keep a command until its reply is wanted."""
        self._command = command

    def receive(self) -> bytes:
        """Send the command and wait for its reply."""
        with plain_errors():
            reply = self._client.local.command(self._command, codec_options=_RAW, session=self._session)
        if self._is_closed:
            raise AutoReconnect("the cursor was closed meanwhile")
        return bytes(reply.raw)

    def close(self) -> None:
        """Let a reply that somebody waits for in another thread be an error."""
        self._is_closed = True
        self._session.end_session()


def _aggregate(handle: Any, command: Aggregate, session: Any) -> dict[str, Any]:
    """Give the arguments of `Database.command` that send an aggregate."""
    concern = {"readConcern": handle.read_concern.document} if handle.read_concern.level else {}
    return {
        "command": {**command.command, **concern},
        "codec_options": raw_codec(handle),
        "read_preference": handle.read_preference,
        "session": session,
    }


def _get_more(command: GetMore) -> dict[str, Any]:
    sent: dict[str, Any] = {"getMore": command.cursor_id, "collection": command.collection}
    optional = {"batchSize": command.batch_size, "maxTimeMS": command.max_time_ms, "comment": command.comment}
    return sent | {name: value for name, value in optional.items() if value}


def _wire_version(client: Any) -> int:
    servers = client.topology_description.server_descriptions().values()
    return min((server.max_wire_version for server in servers if server.max_wire_version), default=0)
