"""The commands of change streams: aggregate and getMore."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace import raw
from tailrace.engine.options import parse_command
from tailrace.engine.stream import FIRST_BATCH
from tailrace.errors import ChangeStreamError, PipelineUnsupported, StreamRefused, TailraceError
from tailrace.gateway import replies
from tailrace.gateway.command import UNAUTHORIZED, Command
from tailrace.gateway.cursors import Cursor
from tailrace.gateway.sessions import SessionCommands, SessionId
from tailrace.gateway.streams import AnySubscription
from tailrace.hub import Batch, read_positions

if TYPE_CHECKING:
    from tailrace.gateway.conversation import Conversation

T = TypeVar("T")
Reply = bytes | tuple[bytes, ...]
"""A reply, maybe in parts of which others send the same ones."""

_DEFAULT_AWAIT: Final = 1.0
_LEFT_TO_UPSTREAM: Final = ("collation", "let", "explain")
"""Options whose streams the upstream serves itself."""
_INTERRUPTED_AT_SHUTDOWN: Final = 11600
_HOST_UNREACHABLE: Final = 6
_NO_LOGIN: Final = "command getMore requires authentication"


class ChangeStreamCommands:
    """Answers one client's commands about change streams."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._gateway = conversation.gateway

    async def aggregate(self, asked: Command) -> Reply | None:
        """Open a change stream; any other aggregation goes on to the upstream."""
        if not _begins_with_change_stream(asked.message.body) or asked.message.sequences:
            return await self._conversation.pass_on(asked)
        command = asked.fields
        if self._is_left_to_upstream(command):
            return await self._leave_to_upstream(asked)
        batch_size = _first_batch_size(command)
        spec = parse_command(command, asked.database, self._gateway.hub.dialect)
        login = self._conversation.login
        self._gateway.cursors.check_room(await self._conversation.users(), self._conversation.address)
        privileges = await login.privileges()
        refused = await login.refused_by_upstream(command)
        if refused is not None:
            return refused
        stage = command["pipeline"][0]["$changeStream"]
        positions = read_positions(stage.get("resumeAfter") or stage.get("startAfter"))
        try:
            subscription = await self._reachable(self._gateway.streams.open(spec, positions))
        except PipelineUnsupported:
            return await self._leave_to_upstream(asked)
        try:
            batch = await self._next_batch(subscription, batch_size, 0)
            return await self._first_reply(asked, subscription, batch, spec.scope.namespace, privileges)
        except BaseException:
            self._gateway.streams.close_soon(subscription)
            raise

    async def _first_reply(
        self, asked: Command, subscription: AnySubscription, batch: Batch, namespace: str, privileges: bytes
    ) -> Reply:
        """Make the cursor, unless the stream has ended already."""
        if subscription.is_closed:
            return self._reply(b"firstBatch", batch, 0, namespace)
        owner, address = await self._conversation.users(), self._conversation.address
        session = SessionId.of(asked.fields.get("lsid"), owner)
        cursors = self._gateway.cursors
        cursor = cursors.open(subscription, namespace, session, owner, asked.fields, privileges, address)
        cursor.events += len(batch.events)
        return self._reply(b"firstBatch", batch, cursor.id, namespace)

    def _is_left_to_upstream(self, command: Mapping[str, Any]) -> bool:
        """Tell whether the upstream serves the stream, or refuses it: before 4.4 a comment had to be text."""
        is_odd_comment = not isinstance(command.get("comment", ""), str)
        return any(name in command for name in _LEFT_TO_UPSTREAM) or (
            is_odd_comment and not self._gateway.hub.dialect.since(4, 4)
        )

    async def _leave_to_upstream(self, asked: Command) -> Reply | None:
        """Let the upstream serve one stream itself: it knows what the engine does not."""
        self._gateway.counts.left_to_upstream += 1
        return await self._conversation.pass_on(asked)

    async def get_more(self, asked: Command) -> Reply | None:
        """Read on in a change stream; any other cursor is the upstream's."""
        command = asked.fields
        cursor = self._gateway.cursors.get(int(command["getMore"]))
        if cursor is None:
            return await self._conversation.pass_on(asked)
        await self._check_owner(cursor, asked)
        refused = await self._still_refused(cursor)
        if refused is not None:
            await SessionCommands(self._conversation).close(cursor)
            return refused
        if cursor.in_use:
            raise StreamRefused(f"cursor id {cursor.id} is already in use", server_code=12051)
        cursor.in_use = True
        try:
            max_events = int(command.get("batchSize", 0)) or None
            waiting = self._next_batch(cursor.subscription, max_events, _seconds_to_wait(command))
            batch = await self._conversation.while_there(waiting)
        except BaseException:
            self._gateway.cursors.remove(cursor)
            self._gateway.streams.close_soon(cursor.subscription)
            raise
        finally:
            cursor.in_use = False
            cursor.used_at = time.monotonic()
        if self._gateway.cursors.get(cursor.id) is None:
            await self._gateway.streams.close(cursor.subscription)
            raise StreamRefused("operation was interrupted", server_code=237, server_code_name="CursorKilled")
        cursor.events += len(batch.events)
        if cursor.subscription.is_closed:
            self._gateway.cursors.remove(cursor)
            return self._reply(b"nextBatch", batch, 0, cursor.namespace)
        return self._reply(b"nextBatch", batch, cursor.id, cursor.namespace)

    async def _next_batch(self, subscription: AnySubscription, max_events: int | None, seconds: float) -> Batch:
        batch = await self._reachable(self._gateway.streams.next_batch(subscription, max_events, seconds))
        if self._gateway.streams.stopping.is_set() and not batch.events:
            raise ChangeStreamError("the gateway is stopping", server_code=_INTERRUPTED_AT_SHUTDOWN)
        return batch

    async def _reachable(self, work: Awaitable[T]) -> T:
        """Tell the client of a shard that cannot be reached as a router does: it may try again."""
        try:
            return await work
        except ChangeStreamError:
            raise
        except TailraceError as error:
            raise ChangeStreamError(error.message, server_code=_HOST_UNREACHABLE) from error

    async def _check_owner(self, cursor: Cursor, asked: Command) -> None:
        """Refuse a cursor to all but the user, session and namespace that it was opened for."""
        namespace = f"{asked.database}.{asked.fields.get('collection')}"
        if namespace != cursor.namespace:
            message = f"Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace"
            raise StreamRefused(f"{message} {cursor.namespace}", server_code=13, server_code_name="Unauthorized")
        users = await self._conversation.users()
        if cursor.owner != users:
            message = f"cursor id {cursor.id} was not created by the authenticated user"
            raise StreamRefused(message, server_code=13, server_code_name="Unauthorized")
        if cursor.session != SessionId.of(asked.fields.get("lsid"), users):
            message = f"Cannot run getMore on cursor {cursor.id}, which was created in another session"
            raise StreamRefused(message, server_code=50738)

    async def _still_refused(self, cursor: Cursor) -> bytes | None:
        """Ask the upstream whether the client may still watch what it watches, when its privileges have changed."""
        login = self._conversation.login
        privileges = await login.privileges()
        if privileges == cursor.privileges:
            return None
        refused = await login.refused_by_upstream(cursor.opened_by, from_now=True)
        if refused is None:
            cursor.privileges = privileges
            return None
        known = await self._conversation.users()
        what = f"not authorized for getMore with cursor id {cursor.id}" if known else _NO_LOGIN
        return self._conversation.with_times(replies.failure(what, UNAUTHORIZED, "Unauthorized"))

    def _reply(self, name: bytes, batch: Batch, cursor_id: int, namespace: str) -> Reply:
        counts = self._gateway.counts
        counts.events += len(batch.events)
        counts.event_bytes += len(batch.elements)
        reply = self._gateway.replies.of(name, batch, namespace, self._conversation.times())
        return reply.for_cursor(cursor_id)


def _begins_with_change_stream(body: bytes) -> bool:
    """Look for `$changeStream` in the first stage, without decoding the command."""
    pipeline = raw.find(body, b"pipeline")
    if pipeline is None or pipeline[0] != raw.ARRAY:
        return False
    stage = raw.find(body, b"0", pipeline[1])
    if stage is None or stage[0] != raw.DOCUMENT:
        return False
    return raw.find(body, b"$changeStream", stage[1]) is not None


def _first_batch_size(command: Mapping[str, Any]) -> int:
    cursor = command.get("cursor")
    if not isinstance(cursor, Mapping):
        raise StreamRefused(
            "The 'cursor' option is required, except for aggregate with the explain argument", server_code=9
        )
    size = cursor.get("batchSize", FIRST_BATCH)
    if not isinstance(size, int | float) or isinstance(size, bool):
        raise StreamRefused("cursor.batchSize field must be a number", server_code=14)
    if size < 0:
        raise StreamRefused("BSON field 'batchSize' value must be >= 0, actual value '-1'", server_code=51024)
    return int(size)


def _seconds_to_wait(command: Mapping[str, Any]) -> float:
    given = command.get("maxTimeMS")
    return _DEFAULT_AWAIT if given is None else int(given) / 1000
