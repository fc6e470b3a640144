"""The one module that uses names pymongo keeps private: cursors whose batches stay bytes, and their own connection.

pymongo's public API can run `aggregate` and read raw batches, but not both for a change stream: the raw
cursors hide the post-batch token and the operation time, `Database.command` cannot send a getMore to the
server that holds the cursor, and neither retries the aggregate as the Retryable Reads specification asks. So
pymongo's own cursors are extended here, by what its `watch()` itself uses:

- `CommandCursor._send_message` with `_GetMore`: server, session, pinned connection, monitoring, killing;
- `CommandCursor._unpack_response`: where a reply becomes documents (here it does not);
- `MongoClient._retryable_read` and `Connection.command`: server selection and one retry of the aggregate;
- `_ConnectionManager`, by which pymongo reads exhaust cursors: a reply that was asked for before is only received;
- `MongoClient._start_session` and `_leave_alive`: a session that outlives the cursors of one stream;
- `_csot`: the time limit in force;
- `Pool.connect`, `_op_msg` and the client's error handler: a connection outside of the pool.

Importing it fails on a release that has changed them (`changed_names`); `public` then takes its place.
"""

from __future__ import annotations

import inspect
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

import bson
import pymongo
from bson.codec_options import DEFAULT_CODEC_OPTIONS, CodecOptions
from pymongo import AsyncMongoClient, MongoClient, _csot
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.asynchronous.cursor_base import _ConnectionManager as _AsyncAwaited
from pymongo.errors import AutoReconnect
from pymongo.helpers_shared import _check_command_response
from pymongo.message import _GetMore, _op_msg, _OpMsg
from pymongo.monitoring import ConnectionClosedReason
from pymongo.server_selectors import writable_server_selector
from pymongo.synchronous import mongo_client
from pymongo.synchronous.client_session import ClientSession
from pymongo.synchronous.command_cursor import CommandCursor
from pymongo.synchronous.cursor_base import _ConnectionManager as _Awaited
from pymongo.synchronous.pool import Connection, Pool

from tailrace import raw
from tailrace.client.commands import Aggregate, GetMore, Reply
from tailrace.client.reply import ReplyReader
from tailrace.client.shared import AsyncHandle, Handle, client_of, opened, plain_errors, raw_codec

_FIRST_BATCH: Final = {"cursor": {"firstBatch": 1}}
_CURSOR_FIRST: Final = b"\x03cursor\x00"
"""How a server's reply begins when it is no error."""
_ErrorHandler: Final[Any] = getattr(mongo_client, "_MongoClientErrorHandler", None) or getattr(
    mongo_client, "_ClientCheckout", None
)
"""What reports errors on a connection to the client; it has another name since 4.19."""
_METHODS: Final[dict[type, set[str]]] = {
    CommandCursor: {"_send_message", "_unpack_response", "_die_no_lock", "_maybe_pin_connection"},
    MongoClient: {"_retryable_read", "_select_server", "_checkout", "_start_session", "_close_cursor_soon"},
    Connection: {"send_message", "receive_message", "pin_cursor", "close_conn", "add_server_api"},
    Pool: {"connect"},
}
_PARAMETERS: Final[dict[Callable[..., Any], tuple[str, ...]]] = {
    _GetMore: (
        "db", "coll", "ntoreturn", "cursor_id", "codec_options", "read_preference", "session", "client",
        "max_await_time_ms", "conn_mgr", "exhaust", "comment",
    ),
    _op_msg: ("flags", "command", "dbname", "read_preference", "opts", "ctx"),
    _Awaited: ("conn", "more_to_come"),
}  # fmt: skip


def changed_names() -> list[str]:
    """Name what this release of pymongo has no more, or calls otherwise."""
    changed = [
        f"{kind.__name__}.{name}" for kind, names in _METHODS.items() for name in names if not hasattr(kind, name)
    ]
    changed += [
        each.__name__ for each, names in _PARAMETERS.items() if tuple(inspect.signature(each).parameters) != names
    ]
    if "_leave_alive" not in ClientSession._end_implicit_session.__code__.co_names:
        changed.append("ClientSession._leave_alive")
    return changed if _ErrorHandler is not None else [*changed, "_MongoClientErrorHandler"]


if changed := changed_names():
    raise ImportError(f"this release of pymongo has changed {', '.join(changed)}")


class _RawBatches:
    """What cursors of both kinds of clients have in common: everything but the I/O."""

    codec: CodecOptions[Any]
    reader: ReplyReader
    decrypts: bool
    may_read_ahead: bool
    _ahead: Any = None
    """The connection on which a reply is under way that nobody receives yet."""
    _receiving: Any = None
    """The connection from which such a reply is received now."""

    def prepare(self, handle: Handle | AsyncHandle, conn: Any) -> None:
        """Note what commands and replies are made and read with."""
        client = client_of(handle)
        self.codec = raw_codec(handle)
        self.decrypts = client._encrypter is not None
        self.may_read_ahead = not (self.decrypts or client.options.load_balanced)
        is_monitored = client._event_listeners.enabled_for_commands
        self.reader = ReplyReader(conn.max_wire_version, handle.codec_options, is_monitored=is_monitored)

    def abandon(self) -> None:
        """Let pymongo kill the cursor in the background: its connection is in an unknown state."""
        self._die_no_lock()

    def _die_no_lock(self) -> None:
        cursor: Any = self
        ahead, self._ahead = self._ahead, None
        if ahead is not None:  # pymongo's own thread or task closes it
            cursor._collection.database.client._close_cursor_soon(cursor._id, cursor._address, ahead)
        super()._die_no_lock()  # type: ignore[misc]

    def _operation(self, command: GetMore) -> _GetMore:
        cursor: Any = self
        return _GetMore(
            command.database,
            command.collection,
            command.batch_size or 0,
            command.cursor_id,
            self.codec,
            cursor._collection._read_preference_for(cursor._session),
            cursor._session,
            cursor._collection.database.client,
            command.max_time_ms,
            self._receiving or cursor._sock_mgr,
            False,
            command.comment,
        )

    def _unpack_response(self, response: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        if self._receiving is not None:
            self._receiving.update_exhaust(False)
        return [self.reader.read(response.raw_command_response())]

    def _last_reply(self) -> Reply:
        """Give the reply that the last getMore left here."""
        cursor: Any = self
        reply = self.reader.reply
        assert reply is not None  # an error was raised
        if self.decrypts:
            # With automatic decryption pymongo has read the reply once more, into raw documents.
            reply = reply._replace(batch=[event.raw for event in cursor._data])
        cursor._data.clear()
        return reply


class RawCursor(_RawBatches, CommandCursor[Any]):
    """A server's cursor, read batch by batch."""

    def get_more(self, command: GetMore) -> Reply:
        """Ask the server that holds the cursor for its next batch, or take the one that was asked for ahead."""
        self._receiving, self._ahead = self._ahead, None
        try:
            self._send_message(self._operation(command))
        finally:
            ahead, self._receiving = self._receiving, None
            if ahead is not None:
                self._give_back(ahead)
        return self._last_reply()

    def read_ahead(self, command: GetMore) -> None:
        """Send the next getMore now, if the pool has room: the server works on it until `get_more` is called.

        An error may mean that the server has read the batch for nobody: the stream has to be resumed.
        """
        operation = self._operation(command)
        client: Any = operation.client
        server = client._select_server(operation.read_preference, self._session, operation.name, address=self._address)
        if not _has_spare_connection(server.pool):
            return
        with client._checkout(server, self._session) as conn:
            conn.send_message(*_encoded(operation, conn))
            conn.pin_cursor()
        self._ahead = _Awaited(conn, more_to_come=True)

    def close(self) -> None:
        """Kill the cursor; a reply that nobody waits for is not waited for here either."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._give_back(ahead)
        super().close()

    def _give_back(self, ahead: _Awaited) -> None:
        """Return a connection to the pool, closed if a reply is still to come on it."""
        if ahead.conn is not None and ahead.more_to_come:
            ahead.conn.close_conn(ConnectionClosedReason.ERROR)
        ahead.close()


class AsyncRawCursor(_RawBatches, AsyncCommandCursor[Any]):
    """The same for asynchronous clients."""

    async def get_more(self, command: GetMore) -> Reply:
        """Ask the server that holds the cursor for its next batch, or take the one that was asked for ahead."""
        self._receiving, self._ahead = self._ahead, None
        try:
            await self._send_message(self._operation(command))
        finally:
            ahead, self._receiving = self._receiving, None
            if ahead is not None:
                await self._give_back(ahead)
        return self._last_reply()

    async def read_ahead(self, command: GetMore) -> None:
        """Send the next getMore now, if the pool has room: the server works on it until `get_more` is called.

        An error may mean that the server has read the batch for nobody: the stream has to be resumed.
        """
        operation = self._operation(command)
        client: Any = operation.client
        server = await client._select_server(
            operation.read_preference, self._session, operation.name, address=self._address
        )
        if not _has_spare_connection(server.pool):
            return
        async with client._checkout(server, self._session) as conn:
            await conn.send_message(*_encoded(operation, conn))
            conn.pin_cursor()
        self._ahead = _AsyncAwaited(conn, more_to_come=True)

    async def close(self) -> None:
        """Kill the cursor; a reply that was asked for ahead is not waited for any more, here or in another task."""
        ahead, self._ahead = self._ahead or self._receiving, None
        if ahead is not None:
            await self._give_back(ahead)
        await super().close()

    async def _give_back(self, ahead: _AsyncAwaited) -> None:
        """Return a connection to the pool, closed if a reply is still to come on it."""
        if ahead.conn is not None and ahead.more_to_come:
            await ahead.conn.close_conn(ConnectionClosedReason.ERROR)
        await ahead.close()


def open_cursor(handle: Handle, command: Aggregate, session: Any) -> tuple[RawCursor, Reply]:
    """Run the aggregate on a server of the read preference and keep what it opened."""
    client = client_of(handle)

    def run(session: Any, _server: Any, conn: Any, read_preference: Any) -> tuple[RawCursor, Reply]:
        with plain_errors():
            answer = conn.command(**_request(handle, command, read_preference, session))
        collection, info, reply = opened(handle, answer, conn.max_wire_version)
        cursor = RawCursor(collection, info, conn.address, session=session)
        cursor.prepare(handle, conn)
        cursor._maybe_pin_connection(conn)
        return cursor, reply

    ran: tuple[RawCursor, Reply] = client._retryable_read(
        run, handle._read_preference_for(session), session, operation="aggregate"
    )
    return ran


async def open_async_cursor(handle: AsyncHandle, command: Aggregate, session: Any) -> tuple[AsyncRawCursor, Reply]:
    """Run the aggregate on a server of the read preference and keep what it opened."""
    client = client_of(handle)

    async def run(session: Any, _server: Any, conn: Any, read_preference: Any) -> tuple[AsyncRawCursor, Reply]:
        with plain_errors():
            answer = await conn.command(**_request(handle, command, read_preference, session))
        collection, info, reply = opened(handle, answer, conn.max_wire_version)
        cursor = AsyncRawCursor(collection, info, conn.address, session=session)
        cursor.prepare(handle, conn)
        await cursor._maybe_pin_connection(conn)
        return cursor, reply

    ran: tuple[AsyncRawCursor, Reply] = await client._retryable_read(
        run, handle._read_preference_for(session), session, operation="aggregate"
    )
    return ran


def start_session(client: MongoClient[Any] | AsyncMongoClient[Any]) -> Any:
    """Make a session for one stream: implicit, so that servers without sessions are no error."""
    session = client._start_session(True, causal_consistency=False)
    session._leave_alive = True
    return session


def end_session(session: Any) -> Awaitable[None] | None:
    """Give the stream's session back to the client, at once."""
    session._leave_alive = False
    session._end_implicit_session()
    return None


def is_time_limited() -> bool:
    """Whether a time limit is in force here."""
    return _csot.get_timeout() is not None


def time_limit(seconds: float) -> AbstractContextManager[Any]:
    """Limit what happens inside, unless a `pymongo.timeout()` around it does already."""
    return nullcontext() if is_time_limited() else pymongo.timeout(seconds)


def _request(handle: Handle | AsyncHandle, command: Aggregate, read_preference: Any, session: Any) -> dict[str, Any]:
    """Give the arguments of `Connection.command` that send an aggregate."""
    return {
        "dbname": command.database,
        "spec": dict(command.command),
        "read_preference": read_preference,
        "codec_options": raw_codec(handle),
        "read_concern": handle.read_concern,
        "session": session,
        "client": client_of(handle),
        "user_fields": _FIRST_BATCH,
    }


def _encoded(operation: _GetMore, conn: Any) -> tuple[bytes, int]:
    """Give a getMore as it is sent, and the size of its largest document."""
    command, database = operation.as_command(conn)
    _, message, size, _ = _op_msg(0, command, database, None, operation.codec_options, conn.compression_context)
    return message, size


def _has_spare_connection(pool: Any) -> bool:
    """Whether a connection can be spared: never more than half of them, because users want the others meanwhile."""
    has_spare: bool = 2 * (pool.active_sockets + 1) <= pool.max_pool_size
    return has_spare


class CursorConnection:
    """A connection to the primary, outside of the client's pool, which may be small and busy."""

    def __init__(self, client: MongoClient[Any]) -> None:
        self._client = client
        self._server: Any = client._select_server(writable_server_selector, None, "find")
        self._request: int | None = None
        self._is_closed = False
        self.is_answering = False
        """Whether more replies are on their way: nothing has to be asked for."""
        handler = _ErrorHandler(client, self._server, None)
        try:
            self._connection: Any = self._server.pool.connect(handler)
        except BaseException as error:
            handler.handle(type(error), error)
            raise

    def ask(self, command: dict[str, Any], *, may_go_on: bool = False) -> None:
        """Send a command to the database `local`; `may_go_on`: the server need not wait for the next one."""
        connection = self._connection
        connection.add_server_api(command)
        flags = _OpMsg.EXHAUST_ALLOWED if may_go_on else 0
        self._request, message, size, _ = _op_msg(
            flags, command, "local", None, DEFAULT_CODEC_OPTIONS, connection.compression_context
        )
        try:
            connection.send_message(message, size)
        except BaseException as error:
            self._report(error)
            raise

    def receive(self) -> bytes:
        """Wait for the next reply; errors in it are raised as pymongo raises them."""
        try:
            reply = self._connection.receive_message(self._request)
            self._request, self.is_answering = None, reply.more_to_come
            data = bytes(reply.raw_command_response())
            if data[4:12] != _CURSOR_FIRST:
                _check_command_response(bson.decode(data), self._connection.max_wire_version)
        except BaseException as error:
            self._report(error)
            raise
        time = raw.find(data, b"$clusterTime")
        if time is not None and self._client._topology is not None:
            # Other commands of the client never seem to come from the past.
            self._client._topology.receive_cluster_time(bson.decode(data[time[1] : time[2]]))
        if not self._server.description.is_writable:
            # It would go on answering, cut off from the others for ever perhaps.
            raise AutoReconnect("the node is no primary any more")
        return data

    def close(self) -> None:
        """End the connection; whoever waits for a reply in another thread gets an error."""
        self._is_closed = True
        with suppress(OSError):
            self._connection.conn.get_conn.shutdown(socket.SHUT_RDWR)
        self._connection.close_conn("stale")
        pool = self._server.pool
        with pool.lock:
            pool.active_contexts.discard(self._connection.cancel_context)

    def _report(self, error: BaseException) -> None:
        """Report an error to the client, whose monitors may not have noticed it; not after `close`."""
        if not self._is_closed:
            handler = _ErrorHandler(self._client, self._server, None)
            handler.contribute_socket(self._connection)
            handler.handle(type(error), error)
