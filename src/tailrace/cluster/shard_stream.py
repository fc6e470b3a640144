"""A shard's own change stream, read as part of a merged one: for what the engine may not serve on an unknown release.

The shard's tail says when it is worth asking: whatever its stream can give has been in its oplog before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tailrace import server_codes
from tailrace.engine.event import Event
from tailrace.engine.options import StreamSpec, stage_of
from tailrace.errors import ChangeStreamError, ServerUnreachable
from tailrace.event import ChangeEvent, EventBatch, EventStream, StreamOf
from tailrace.hub.batch import Batch
from tailrace.hub.event_log import EventLog
from tailrace.hub.hub import Hub
from tailrace.hub.subscription import Subscription
from tailrace.oplog.tail import is_passing
from tailrace.token.resume_token import ResumeToken

_RAW: Final[CodecOptions[RawBSONDocument]] = CodecOptions(RawBSONDocument)
_AWAIT_MS: Final = 1
_PAUSE: Final = 0.01
_SECONDS_BETWEEN_POLLS: Final = 0.2
"""How often it is asked although its tail has read nothing: the two may read from different members."""


class StreamBatch(NamedTuple):
    """A batch of one shard's stream, as the server or the engine gave it."""

    events: list[bytes]
    token: bytes | None
    operation_time: Timestamp | None = None


class ServerStream:
    """A server's own change stream, by plain commands in one session: a reply is a batch."""

    def __init__(self, client: MongoClient[Any], spec: StreamSpec, await_ms: int) -> None:
        """Open it; the server waits so long for each batch."""
        scope = spec.scope
        self._await_ms = await_ms
        self._database = client[scope.database.decode()]
        self._session = client.start_session()
        self._id = 0
        try:
            reply = self._command(
                {"aggregate": scope.collection.decode() or 1, "pipeline": [stage_of(spec), *spec.stages], "cursor": {}}
            )
        except BaseException:
            self._session.end_session()
            raise
        self._id = reply["cursor"]["id"]
        self._collection = reply["cursor"]["ns"].partition(".")[2]
        self._first: StreamBatch | None = _reply(reply, "firstBatch")

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed it, behind an invalidate event."""
        return not self._id and self._first is None

    def batches(self) -> Iterator[StreamBatch]:
        """Give batch after batch, empty ones too."""
        while not self.is_closed:
            yield self.next()

    def next(self) -> StreamBatch:
        """Give the next batch."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        reply = self._command({"getMore": self._id, "collection": self._collection, "maxTimeMS": self._await_ms})
        self._id = reply["cursor"]["id"]
        return _reply(reply, "nextBatch")

    def close(self) -> None:
        """Free the cursor."""
        try:
            if self._id:
                kill = {"killCursors": self._collection, "cursors": [self._id]}
                self._database.command(kill, session=self._session)
        except PyMongoError:
            pass  # it has gone with its connection
        finally:
            self._session.end_session()

    def _command(self, command: dict[str, Any]) -> RawBSONDocument:
        try:
            return self._database.command(command, session=self._session, codec_options=_RAW)
        except PyMongoError as error:
            if is_passing(error) or not isinstance(error, OperationFailure):
                raise ServerUnreachable(f"a server's change stream cannot be read: {error}") from error
            details = error.details or {}
            code = error.code or server_codes.UNKNOWN_ERROR
            raise ChangeStreamError(str(details.get("errmsg", error)), server_code=code) from error


def _reply(reply: RawBSONDocument, name: str) -> StreamBatch:
    cursor = reply["cursor"]
    token = cursor.get("postBatchResumeToken")
    return StreamBatch([event.raw for event in cursor[name]], None if token is None else token.raw)


def stream_of(subscription: Subscription[Any], max_events: int | None = None) -> EventStream:
    """Make a hub's subscription a stream of batches; after an empty one the tail gets a moment to read on."""

    def batches() -> Iterator[EventBatch]:
        while not subscription.is_closed:
            batch = subscription.poll(max_events)
            yield StreamBatch([event.raw for event in batch.events], batch.token)
            if not batch.events:
                time.sleep(_PAUSE)

    return StreamOf(batches, subscription.close)


class ServersPart:
    """A part of a merge that stands at its last token: the stream of a server says no more than that."""

    is_catching_up = False

    def __init__(self, spec: StreamSpec) -> None:
        """Begin where the options of the spec say, which is a token of this shard or a time."""
        after, since = spec.options.start_after, spec.options.start_at_operation_time
        if after is None and since is None:
            raise ValueError("a shard's part begins somewhere")
        self.position = after or ResumeToken.high_water_mark(since)  # type: ignore[arg-type]

    @property
    def high_water_mark(self) -> ResumeToken:
        """The position."""
        return self.position

    def _batch(self, events: Sequence[bytes], token: bytes | None) -> Batch:
        """Move on to the token of a batch."""
        if token is not None:
            self.position = max(self.position, ResumeToken.parse(token))
        return Batch(list(map(_event, events)), self.position)


class ShardStreamPart(ServersPart):
    """A shard's own stream as part of a merge."""

    def __init__(
        self, client: MongoClient[Any], hub: Hub, spec: StreamSpec, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open it."""
        super().__init__(spec)
        self.channel: EventLog | None = _Wakes(self.position)
        self._stream = ServerStream(client, spec, _AWAIT_MS)
        self._hub = hub
        self._clock = clock
        self._asked_at_time = -1
        """How far the tail was when the stream had nothing more to give."""
        self._next_poll = 0.0

    @property
    def has_data(self) -> bool:
        """Whether the tail has read on since the stream was empty, or that is some time ago."""
        if self._stream.is_closed:
            return False
        return self._hub.reached > self._asked_at_time or self._clock() >= self._next_poll

    def poll(self, max_events: int | None) -> Batch:
        """Give the server's next batch, as large as the server made it."""
        if not self.has_data:
            return Batch([], self.position)
        reached = self._hub.reached
        reply = self._stream.next()
        self._asked_at_time = -1 if reply.events else reached
        self._next_poll = self._clock() + _SECONDS_BETWEEN_POLLS
        behind = reply.token or (_event(reply.events[-1]).token if reply.events else None)
        return self._batch(reply.events, behind)

    def close(self) -> None:
        """Free the cursor."""
        self._stream.close()


class _Wakes(EventLog):
    """What those wait for who read a shard's own stream: it holds nothing, and is woken when the tail has read on."""

    has_data = False

    def __init__(self, position: ResumeToken) -> None:
        super().__init__(position.time, 0)
        self._position = position

    @property
    def end_position(self) -> ResumeToken:
        """Where it began."""
        return self._position

    def _make_events(self, *, only_quick: bool) -> bool:
        """Have nothing to make."""
        return True


def _event(raw: bytes) -> Event:
    """Make an event of a server's own bytes; nobody asks for its namespace, which the server has chosen by."""
    change = ChangeEvent(raw)
    return Event(raw, change.token_time, b"", change.operation_type)
