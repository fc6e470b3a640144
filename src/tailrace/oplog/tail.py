"""Read a live replica set's oplog as raw bytes, majority-committed entries only.

Reads go to the primary through pymongo, with read concern "majority": an entry that this module gave is
on a majority of the nodes, so no election can take it back. After any interruption the tail reads
again from the last entry it gave and checks that it meets that very entry, so nothing is skipped and
nothing comes twice.

Speed comes from what is left out: each reply is one piece of bytes, entries are sliced from it, and the next
batches are on their way while the last one is being used (`client.private.CursorConnection`).
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, ConnectionFailure, OperationFailure, PyMongoError

from tailrace import raw, server_codes
from tailrace.client import CursorConnection
from tailrace.errors import BsonMalformed, ChangeStreamError, HistoryLost, ServerUnreachable
from tailrace.oplog.source import OplogBatch
from tailrace.owned.closeable import Closeable
from tailrace.raw.cluster_time import ClusterTime
from tailrace.retry import Backoff, RetryPolicy


class CursorReply(NamedTuple):
    """A batch, and the cursor to ask for the next one; 0 when there is none any more."""

    cursor_id: int
    entries: Sequence[bytes]
    operation_time: int
    """How far the server was when it answered; 0 when it does not say."""


def read_batch(reply: bytes) -> CursorReply:
    """Slice the entries out of the reply to `find` or `getMore`."""
    cursor = raw.find(reply, b"cursor")
    if cursor is None:
        raise BsonMalformed("a reply has no cursor", offset=0)
    number = raw.find(reply, b"id", cursor[1])
    batch = raw.find(reply, b"nextBatch", cursor[1]) or raw.find(reply, b"firstBatch", cursor[1])
    if number is None or batch is None:
        raise BsonMalformed("a cursor has no batch", offset=cursor[1])
    entries = raw.documents_in(reply, batch[1])
    return CursorReply(raw.int64_at(reply, number[1]), entries, raw.time_in(reply, b"operationTime") or 0)


_RAW: Final[CodecOptions[RawBSONDocument]] = CodecOptions(RawBSONDocument)
_COLLECTION: Final = "oplog.rs"

_OPLOG_REPLAY_NEEDED_BEFORE: Final = 9
"""Servers of wire versions below (4.2) seek by time only when told that a query is a replay."""


class LiveOplog(Closeable):
    """The oplog of the replica set that a client is connected to.

    A network that swallows packets is only noticed by a socket timeout, so the client should have one
    above `await_ms`; `connect` makes such a client. A batch of a thousand entries stays in the processor's cache
    and in memory that is used again: larger ones are slower to read, not faster.
    """

    def __init__(
        self,
        client: MongoClient[Any],
        *,
        batch_entries: int = 1_000,
        await_ms: int = 1_000,
        retry_seconds: float = 60.0,
    ) -> None:
        self.client = client
        self.batch_entries = batch_entries
        self.await_ms = await_ms
        self.retry_seconds = retry_seconds
        self._owns_client = False

    @classmethod
    def connect(cls, uri: str, *, socket_timeout: float = 20.0, **options: Any) -> LiveOplog:
        """Connect with a client of its own, which `close` closes."""
        oplog = cls(MongoClient(uri, socketTimeoutMS=int(socket_timeout * 1000)), **options)
        oplog._owns_client = True
        return oplog

    def close(self) -> None:
        """Close the client if it is this object's own."""
        if self._owns_client:
            self.client.close()

    def open(self, since: int) -> OplogTail:
        """Begin with the first entry at or after a time; `HistoryLost` when some are gone."""
        return OplogTail(self, since)

    def entry_at(self, time: int) -> bytes:
        """Read the entry of exactly this time; `HistoryLost` when it is gone."""
        # A new primary may not know yet that a majority has what the tail gave: it waits until it does.
        query = {**self.query(time, after=time), "limit": 1, "singleBatch": True}
        batch = self._until_answered(lambda: read_batch(self.command(query)))
        if not batch.entries or time_of(batch.entries[0]) != time:
            raise history_lost()
        return batch.entries[0]

    def bounds(self) -> tuple[bytes, bytes]:
        """Read the oldest entry, and the newest that a majority has."""
        return self._edge(1), self._edge(-1)

    def newest(self) -> int:
        """Give the time of the newest entry that a majority has."""
        return time_of(self._edge(-1))

    def _edge(self, direction: int) -> bytes:
        query = {
            "find": _COLLECTION,
            "sort": {"$natural": direction},
            "limit": 1,
            "singleBatch": True,
            "readConcern": {"level": "majority"},
        }
        batch = self._until_answered(lambda: read_batch(self.command(query)))
        if not batch.entries:
            raise history_lost()
        return batch.entries[0]

    def query(self, since: int, after: int = 0) -> dict[str, Any]:
        """Make the query for entries from a time on; `after`: once the majority has reached that."""
        concern: dict[str, Any] = {"level": "majority"}
        if after:
            concern["afterClusterTime"] = ClusterTime(after).timestamp
        query: dict[str, Any] = {
            "find": _COLLECTION,
            "filter": {"ts": {"$gte": ClusterTime(since).timestamp}},
            "readConcern": concern,
        }
        if self._wire_version() < _OPLOG_REPLAY_NEEDED_BEFORE:
            query["oplogReplay"] = True
        return query

    def _wire_version(self) -> int:
        description = self.client.topology_description
        versions = [s.max_wire_version for s in description.server_descriptions().values()]
        known = [version for version in versions if version]
        if not known:
            return int(self.client.admin.command("isMaster")["maxWireVersion"])
        return min(known)

    def command(self, command: dict[str, Any]) -> bytes:
        """Run a command on `local` and give its reply as it came."""
        reply = self.client.local.command(command, codec_options=_RAW)
        return bytes(reply.raw)

    def _until_answered(self, ask: Callable[[], CursorReply]) -> CursorReply:
        """Ask again while the set has no primary, until the retry budget is spent."""
        retry = _Retry(self.retry_seconds)
        while True:
            try:
                return ask()
            except PyMongoError as error:
                retry.pause_after(error)


class OplogTail(Closeable):
    """One pass over a live oplog, from a time on; see `OplogReader`."""

    def __init__(self, oplog: LiveOplog, since: int) -> None:
        self._oplog = oplog
        self._since = since
        self._last: bytes | None = None
        self._reached = since
        self._cursor: _Cursor | None = None
        self._closed = False

    def __iter__(self) -> Iterator[OplogBatch]:
        return self

    def __next__(self) -> OplogBatch:
        """Give the next batch, through whatever happens to the set.

        `ServerUnreachable` ends only this call: the next one goes on where this one stopped.
        """
        if self._closed:
            raise StopIteration
        try:
            reply = self._open() if self._cursor is None else self._cursor.next_reply()
        except PyMongoError as error:
            reply = self._open_again(error)
        if reply.entries:
            self._last = reply.entries[-1]
            self._reached = time_of(self._last)
        return OplogBatch(reply.entries, self._reached, reply.operation_time)

    def close(self) -> None:
        """Stop, and free the cursor on the server."""
        self._closed = True
        self._drop_cursor()

    def _open(self) -> CursorReply:
        """Open a cursor where the tail stands, and give what it has behind that."""
        cursor = _Cursor(self._oplog, self._since if self._last is None else self._reached, self._last)
        try:
            reply = cursor.open()
            if self._last is None:
                self._check_history()
            else:
                reply = reply._replace(entries=self._continue(reply.entries))
        except BaseException:
            cursor.close()
            raise
        self._cursor = cursor
        return reply

    def _open_again(self, error: PyMongoError) -> CursorReply:
        """Read on with a new cursor once the set has a primary again."""
        retry = _Retry(self._oplog.retry_seconds)
        while True:
            if self._closed:
                raise StopIteration from None
            self._drop_cursor()
            retry.pause_after(error)
            try:
                return self._open()
            except PyMongoError as another:
                error = another

    def _continue(self, entries: Sequence[bytes]) -> Sequence[bytes]:
        """Leave out the entry that was given last; it must be there, for nothing may be skipped."""
        if not entries:
            raise AutoReconnect("the node does not show yet what a majority has")
        if identity(entries[0]) != identity(self._last or b""):
            raise history_lost()
        return entries[1:]

    def _check_history(self) -> None:
        """Refuse a start before the oldest entry, unless that is the very first the set ever wrote.

        Checked after the cursor is open: what was there then cannot have been lost before.
        """
        oldest = read_batch(
            self._oplog.command({"find": _COLLECTION, "sort": {"$natural": 1}, "limit": 1, "singleBatch": True})
        ).entries
        if oldest and time_of(oldest[0]) > self._since and not is_first_of_set(oldest[0]):
            raise history_lost()

    def _drop_cursor(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


class _Cursor:
    """A tailable cursor on a connection of its own."""

    def __init__(self, oplog: LiveOplog, since: int, last: bytes | None) -> None:
        self._oplog = oplog
        self._query = oplog.query(since, after=since if last is not None else 0)
        self._query |= {"tailable": True, "awaitData": True, "batchSize": oplog.batch_entries}
        self._connection = CursorConnection(oplog.client)
        self._id: int | None = None

    def open(self) -> CursorReply:
        """Open the cursor and give its first entries."""
        self._connection.ask(self._query)
        return self.next_reply()

    def next_reply(self) -> CursorReply:
        """Wait for the batch that is on its way, and see to it that another one is."""
        if self._id == 0:  # the server closed the cursor, as it does when the oplog is empty
            raise AutoReconnect("the server closed the cursor")
        reply = read_batch(self._connection.receive())
        self._id = reply.cursor_id
        if self._id and not self._connection.is_answering:
            more = {
                "getMore": self._id,
                "collection": _COLLECTION,
                "batchSize": self._oplog.batch_entries,
                "maxTimeMS": self._oplog.await_ms,
            }
            self._connection.ask(more, may_go_on=True)
        return reply

    def close(self) -> None:
        """Free the cursor and end its connection, and with it a read that waits for data in another thread."""
        self._connection.close()
        if self._id:
            try:
                self._oplog.client.local.command({"killCursors": _COLLECTION, "cursors": [self._id]})
            except PyMongoError:
                pass  # the server or the client is gone, and the cursor with it


class _Retry:
    """Decides whether to try again after an error, and waits before that."""

    def __init__(self, seconds: float) -> None:
        self._backoff = Backoff(RetryPolicy(first=0.02, longest=1.0, budget=seconds))

    def pause_after(self, error: PyMongoError) -> None:
        """Wait a little longer each time; raise when the error will not pass, or the budget is spent."""
        if not is_passing(error):
            raise _refused(error) from error
        pause = self._backoff.failed()
        if pause is None:
            raise ServerUnreachable(f"the oplog cannot be read: {error}") from error
        clock.sleep(pause)


def is_passing(error: PyMongoError) -> bool:
    """Tell whether the same read may succeed later: elections, restarts, network faults."""
    if isinstance(error, OperationFailure):
        return error.code in server_codes.PASSING_FOR_A_TAIL
    return isinstance(error, ConnectionFailure)


def _refused(error: PyMongoError) -> Exception:
    if isinstance(error, OperationFailure):
        return ChangeStreamError(
            f"the oplog cannot be read: {error}",
            server_code=error.code or 8,
            hint="Reading the oplog needs a replica set and the role `read` on the database `local`.",
        )
    return ServerUnreachable(f"the oplog cannot be read: {error}")


def history_lost() -> HistoryLost:
    """Make the error for a position that the oplog no longer holds, in the server's words."""
    return HistoryLost("Resume of change stream was not possible, as the resume point may no longer be in the oplog.")


def time_of(entry: bytes) -> int:
    """Give the cluster time of an entry."""
    time = raw.time_in(entry, b"ts")
    if time is None:
        raise BsonMalformed("an oplog entry has no time", offset=0)
    return time


def identity(entry: bytes) -> tuple[int, bytes | None]:
    """Give what makes an entry one of a kind: its time and the term of the primary that wrote it."""
    term = raw.field(entry, b"t")
    return time_of(entry), term.data if term else None


def is_first_of_set(entry: bytes) -> bool:
    """Tell whether an entry is the first that a replica set ever wrote."""
    span = raw.find_path(entry, b"o", b"msg")
    return span is not None and entry[span[1] : span[2]] == raw.string("initiating set")
