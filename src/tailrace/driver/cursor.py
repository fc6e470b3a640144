"""Cursors whose batches stay bytes: the one place that uses names pymongo keeps private.

pymongo's public API can run `aggregate` and read raw batches, but not both for a change stream: the raw
cursors hide the post-batch token and the operation time, `Database.command` cannot send a getMore to the
server that holds the cursor, and neither retries the aggregate as the Retryable Reads specification asks. So
pymongo's own cursors are extended here, by what its `watch()` itself uses:

- `CommandCursor._send_message` with `_GetMore`: server, session, pinned connection, monitoring, killing;
- `CommandCursor._unpack_response`: where a reply becomes documents (here it does not);
- `MongoClient._retryable_read` and `Connection.command`: server selection and one retry of the aggregate;
- `_ConnectionManager`, by which pymongo reads exhaust cursors: a reply that was asked for before is only received;
- `MongoClient._start_session` and `_leave_alive`: a session that outlives the cursors of one stream;
- `_csot`: the time limit in force.

The pin in pyproject.toml (pymongo < 4.18) covers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeAlias

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient, _csot
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.asynchronous.cursor_base import _ConnectionManager as _AsyncAwaited
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import NotPrimaryError, OperationFailure
from pymongo.message import _GetMore
from pymongo.monitoring import ConnectionClosedReason
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.command_cursor import CommandCursor
from pymongo.synchronous.cursor_base import _ConnectionManager as _Awaited
from pymongo.synchronous.database import Database

from tailrace.driver.commands import Aggregate, GetMore, Reply
from tailrace.driver.reply import ReplyReader

Place: TypeAlias = Database[Any] | Collection[Any]
"""Where a synchronous stream runs its aggregate; carries read preference, read concern and codec options."""
AsyncPlace: TypeAlias = AsyncDatabase[Any] | AsyncCollection[Any]

_FIRST_BATCH: Final = {"cursor": {"firstBatch": 1}}


class RawCursor(CommandCursor[Any]):
    """A server's cursor, read batch by batch."""

    codec: CodecOptions[Any]
    reader: ReplyReader
    decrypts: bool
    may_ask_ahead: bool
    _ahead: _Awaited | None = None
    """The connection on which a reply is under way that nobody receives yet."""
    _receiving: _Awaited | None = None

    def get_more(self, command: GetMore) -> Reply:
        """Ask the server that holds the cursor for its next batch, or take the one that was asked for ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            self._send_message(_operation(self, command))
            return _last_reply(self)
        self._receiving = ahead
        try:
            self._send_message(_operation(self, command, ahead))
        finally:
            self._receiving = None
            self._give_back(ahead)
        return _last_reply(self)

    def ask_ahead(self, command: GetMore) -> None:
        """Send the next getMore now, if the pool has room: the server works on it until `get_more` is called.

        An error may mean that the server has read the batch for nobody: the stream has to be resumed.
        """
        operation = _operation(self, command)
        client: Any = operation.client
        server = client._select_server(operation.read_preference, self._session, operation.name, address=self._address)
        if not _has_room(server.pool):
            return
        with client._checkout(server, self._session) as conn:
            message: Any = operation.get_message(operation.read_preference, conn, use_cmd=True)
            conn.send_message(message[1], message[2])
            conn.pin_cursor()
        self._ahead = _Awaited(conn, more_to_come=True)

    def close(self) -> None:
        """Kill the cursor; a reply that nobody waits for is not waited for here either."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._give_back(ahead)
        super().close()

    def abandon(self) -> None:
        """Let pymongo kill the cursor in the background: its connection is in an unknown state."""
        self._die_no_lock()

    def _die_no_lock(self) -> None:
        _close_soon(self)
        super()._die_no_lock()

    def _give_back(self, ahead: _Awaited) -> None:
        """Return a connection to the pool, closed if a reply is still to come on it."""
        if ahead.conn is not None and ahead.more_to_come:
            ahead.conn.close_conn(ConnectionClosedReason.ERROR)
        ahead.close()

    def _unpack_response(self, response: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        if self._receiving is not None:
            self._receiving.update_exhaust(False)
        return [self.reader.read(response.raw_command_response())]


class AsyncRawCursor(AsyncCommandCursor[Any]):
    """The same for asynchronous clients."""

    codec: CodecOptions[Any]
    reader: ReplyReader
    decrypts: bool
    may_ask_ahead: bool
    _ahead: _AsyncAwaited | None = None
    _receiving: _AsyncAwaited | None = None

    async def get_more(self, command: GetMore) -> Reply:
        """Ask the server that holds the cursor for its next batch, or take the one that was asked for ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            await self._send_message(_operation(self, command))
            return _last_reply(self)
        self._receiving = ahead
        try:
            await self._send_message(_operation(self, command, ahead))
        finally:
            self._receiving = None
            await self._give_back(ahead)
        return _last_reply(self)

    async def ask_ahead(self, command: GetMore) -> None:
        """Send the next getMore now, if the pool has room: the server works on it until `get_more` is called.

        An error may mean that the server has read the batch for nobody: the stream has to be resumed.
        """
        operation = _operation(self, command)
        client: Any = operation.client
        server = await client._select_server(
            operation.read_preference, self._session, operation.name, address=self._address
        )
        if not _has_room(server.pool):
            return
        async with client._checkout(server, self._session) as conn:
            message: Any = operation.get_message(operation.read_preference, conn, use_cmd=True)
            await conn.send_message(message[1], message[2])
            conn.pin_cursor()
        self._ahead = _AsyncAwaited(conn, more_to_come=True)

    async def close(self) -> None:
        """Kill the cursor; a reply that was asked for ahead is not waited for any more, here or in another task."""
        ahead, self._ahead = self._ahead or self._receiving, None
        if ahead is not None:
            await self._give_back(ahead)
        await super().close()

    def abandon(self) -> None:
        """Let pymongo kill the cursor in the background: its connection is in an unknown state."""
        self._die_no_lock()

    def _die_no_lock(self) -> None:
        _close_soon(self)
        super()._die_no_lock()

    async def _give_back(self, ahead: _AsyncAwaited) -> None:
        """Return a connection to the pool, closed if a reply is still to come on it."""
        if ahead.conn is not None and ahead.more_to_come:
            await ahead.conn.close_conn(ConnectionClosedReason.ERROR)
        await ahead.close()

    def _unpack_response(self, response: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        if self._receiving is not None:
            self._receiving.update_exhaust(False)
        return [self.reader.read(response.raw_command_response())]


def open_cursor(place: Place, command: Aggregate, session: Any) -> tuple[RawCursor, Reply]:
    """Run the aggregate on a server of the read preference and keep what it opened."""
    client = _client_of(place)

    def run(session: Any, _server: Any, conn: Any, read_preference: Any) -> tuple[RawCursor, Reply]:
        with _plain_errors():
            answer = conn.command(**_request(place, command, read_preference, session))
        collection, info, reply = _opened(place, answer, conn.max_wire_version)
        cursor = RawCursor(collection, info, conn.address, session=session)
        _prepare(cursor, place, conn)
        cursor._maybe_pin_connection(conn)
        return cursor, reply

    opened: tuple[RawCursor, Reply] = client._retryable_read(
        run, place._read_preference_for(session), session, operation="aggregate"
    )
    return opened


async def open_async_cursor(place: AsyncPlace, command: Aggregate, session: Any) -> tuple[AsyncRawCursor, Reply]:
    """Run the aggregate on a server of the read preference and keep what it opened."""
    client = _client_of(place)

    async def run(session: Any, _server: Any, conn: Any, read_preference: Any) -> tuple[AsyncRawCursor, Reply]:
        with _plain_errors():
            answer = await conn.command(**_request(place, command, read_preference, session))
        collection, info, reply = _opened(place, answer, conn.max_wire_version)
        cursor = AsyncRawCursor(collection, info, conn.address, session=session)
        _prepare(cursor, place, conn)
        await cursor._maybe_pin_connection(conn)
        return cursor, reply

    opened: tuple[AsyncRawCursor, Reply] = await client._retryable_read(
        run, place._read_preference_for(session), session, operation="aggregate"
    )
    return opened


def _prepare(cursor: RawCursor | AsyncRawCursor, place: Place | AsyncPlace, conn: Any) -> None:
    """Note what a new cursor's commands and replies are made and read with."""
    client = _client_of(place)
    cursor.codec = _raw_codec(place)
    cursor.decrypts = client._encrypter is not None
    cursor.may_ask_ahead = not (cursor.decrypts or client.options.load_balanced)
    is_monitored = client._event_listeners.enabled_for_commands
    cursor.reader = ReplyReader(conn.max_wire_version, place.codec_options, is_monitored=is_monitored)


def start_session(client: MongoClient[Any] | AsyncMongoClient[Any]) -> Any:
    """Make a session for one stream: implicit, so that servers without sessions are no error."""
    session = client._start_session(True, causal_consistency=False)
    session._leave_alive = True
    return session


def end_session(session: Any) -> None:
    """Give the stream's session back to the client."""
    session._leave_alive = False
    session._end_implicit_session()


def is_time_limited() -> bool:
    """Whether a time limit is in force here."""
    return _csot.get_timeout() is not None


def time_limit(timeout_ms: int | None, place: Place | AsyncPlace) -> AbstractContextManager[Any]:
    """Limit what happens inside, unless a `pymongo.timeout()` around it does already."""
    if is_time_limited():
        return nullcontext()
    seconds = place._timeout if timeout_ms is None else timeout_ms / 1000
    return nullcontext() if seconds is None else pymongo.timeout(seconds)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Decode what a server says of an error: only events stay bytes."""
    try:
        yield
    except OperationFailure as error:
        details = _decoded(error.details)
        raise type(error)(details["errmsg"], error.code, details, error._max_wire_version) from None
    except NotPrimaryError as error:
        details = _decoded(error.details)
        raise NotPrimaryError(details["errmsg"], details) from None


def _decoded(details: Any) -> dict[str, Any]:
    return bson.decode(details.raw) if isinstance(details, RawBSONDocument) else details


def _client_of(place: Any) -> Any:
    return place.client if isinstance(place, Database | AsyncDatabase) else place.database.client


def _request(place: Place | AsyncPlace, command: Aggregate, read_preference: Any, session: Any) -> dict[str, Any]:
    """Give the arguments of `Connection.command` that send an aggregate."""
    return {
        "dbname": command.database,
        "spec": dict(command.command),
        "read_preference": read_preference,
        "codec_options": _raw_codec(place),
        "read_concern": place.read_concern,
        "session": session,
        "client": _client_of(place),
        "user_fields": _FIRST_BATCH,
    }


def _raw_codec(place: Place | AsyncPlace) -> CodecOptions[Any]:
    """Keep documents as bytes, but the user's type codecs: a pipeline may need them."""
    return place.codec_options.with_options(document_class=RawBSONDocument)


def _opened(place: Any, answer: Any, max_wire_version: int) -> tuple[Any, dict[str, Any], Reply]:
    """Take the reply to an aggregate apart: the collection for getMore, the cursor, the reply."""
    found = answer["cursor"]
    namespace = found.get("ns", "")
    collection = (
        place if isinstance(place, Collection | AsyncCollection) else place[namespace.partition(".")[2] or "$cmd"]
    )
    token = found.get("postBatchResumeToken")
    reply = Reply(
        found["id"],
        namespace,
        [event.raw for event in found["firstBatch"]],
        None if token is None else token.raw,
        answer.get("operationTime"),
        max_wire_version,
    )
    return collection, {"id": found["id"], "firstBatch": [], "ns": namespace}, reply


def _operation(cursor: Any, command: GetMore, ahead: Any = None) -> _GetMore:
    return _GetMore(
        command.database,
        command.collection,
        command.batch_size or 0,
        command.cursor_id,
        cursor.codec,
        cursor._collection._read_preference_for(cursor._session),
        cursor._session,
        cursor._collection.database.client,
        command.max_time_ms,
        ahead or cursor._sock_mgr,
        False,
        command.comment,
    )


def _has_room(pool: Any) -> bool:
    """Whether a connection can be spared: never more than half of them, because users want the others meanwhile."""
    room: bool = 2 * (pool.active_sockets + 1) <= pool.max_pool_size
    return room


def _close_soon(cursor: Any) -> None:
    """Let pymongo's own thread or task close a connection on which a reply is still to come."""
    ahead, cursor._ahead = cursor._ahead, None
    if ahead is not None:
        cursor._collection.database.client._close_cursor_soon(cursor._id, cursor._address, ahead)


def _last_reply(cursor: Any) -> Reply:
    """Give the reply that the last getMore left in the cursor."""
    reply: Reply = cursor.reader.reply
    if cursor.decrypts:
        # With automatic decryption pymongo has read the reply once more, into raw documents.
        reply = reply._replace(batch=[event.raw for event in cursor._data])
    cursor._data.clear()
    return reply
