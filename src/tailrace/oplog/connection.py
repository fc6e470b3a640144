"""A connection of its own for reading one cursor, whose replies come without being asked for one by one.

A server that is allowed to (OP_MSG's `exhaustAllowed`, known since 4.2) sends the batches of a tailable cursor one
after the other. The next ones then lie in the socket's buffer while the last one is being used: no thread has to
fetch them, nothing is waited for, and a reader that is slower than the server stops it by not reading. A server
that does not know the flag answers each request, which is sent before its last answer is looked at.

pymongo has this for cursors that are not tailable only. So this is, beside the driver's cursors, the other place that
uses names pymongo keeps private: connecting with all that a client was configured with (`Pool.connect`),
sending and receiving one message, and telling the client of errors. The pin in pyproject.toml (pymongo < 4.18)
covers them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import bson
from bson.codec_options import DEFAULT_CODEC_OPTIONS
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from pymongo.helpers_shared import _check_command_response
from pymongo.message import _op_msg, _OpMsg
from pymongo.server_selectors import writable_server_selector
from pymongo.synchronous.mongo_client import _MongoClientErrorHandler

from tailrace import raw

_CURSOR_FIRST: Final = b"\x03cursor\x00"
"""How a server's reply begins when it is no error."""


class CursorConnection:
    """A connection to the primary, outside of the client's pool, which may be small and busy."""

    def __init__(self, client: MongoClient[Any]) -> None:
        self._client = client
        self._server: Any = client._select_server(writable_server_selector, None, "find")
        self._request: int | None = None
        self._is_closed = False
        self.is_answering = False
        """Whether more replies are on their way: nothing has to be asked for."""
        with _MongoClientErrorHandler(client, self._server, None) as handler:
            self._connection: Any = self._server.pool.connect(handler)

    def ask(self, command: dict[str, Any], *, may_go_on: bool = False) -> None:
        """Send a command to the database `local`; `may_go_on`: the server need not wait for the next one."""
        connection = self._connection
        connection.add_server_api(command)
        flags = _OpMsg.EXHAUST_ALLOWED if may_go_on else 0
        self._request, message, size, _ = _op_msg(
            flags, command, "local", None, DEFAULT_CODEC_OPTIONS, connection.compression_context
        )
        with self._telling_of_errors():
            connection.send_message(message, size)

    def receive(self) -> bytes:
        """Wait for the next reply; errors in it are raised as pymongo raises them."""
        with self._telling_of_errors():
            reply = self._connection.receive_message(self._request)
            self._request, self.is_answering = None, reply.more_to_come
            data = bytes(reply.raw_command_response())
            if data[4:12] != _CURSOR_FIRST:
                _check_command_response(bson.decode(data), self._connection.max_wire_version)
        self._learn_time(data)
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

    @contextmanager
    def _telling_of_errors(self) -> Iterator[None]:
        """Let the client know what its monitors have not noticed yet; the end of this connection is no news."""
        handler = _MongoClientErrorHandler(self._client, self._server, None)
        handler.contribute_socket(self._connection)
        try:
            yield
        except BaseException as error:
            if not self._is_closed:
                handler.handle(type(error), error)
            raise

    def _learn_time(self, reply: bytes) -> None:
        """Pass the cluster's time on, so that other commands of the client never seem to come from the past."""
        span = raw.find(reply, b"$clusterTime")
        topology = self._client._topology
        if span is not None and topology is not None:
            topology.receive_cluster_time(bson.decode(reply[span[1] : span[2]]))
