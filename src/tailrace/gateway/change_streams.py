"""The commands of change streams: aggregate and getMore."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bson.decimal128 import Decimal128

from tailrace import raw, server_codes
from tailrace.cluster import ClusterHub
from tailrace.engine.dialect import Dialect
from tailrace.engine.options import StreamSpec, parse_command
from tailrace.engine.stream import FIRST_BATCH
from tailrace.errors import ChangeStreamError, StreamRefused, TailraceError
from tailrace.gateway import replies
from tailrace.gateway.command import MOST_SERVED_HERE, Command, unauthorized
from tailrace.gateway.cursors import Cursor
from tailrace.gateway.identity import NOBODY, Identity
from tailrace.gateway.repeated import RepeatedGetMore
from tailrace.gateway.sessions import SessionCommands, SessionId
from tailrace.gateway.streams import AnySubscription
from tailrace.hub import Batch
from tailrace.raw.decimals import to_decimal
from tailrace.token.shard_positions import read_positions

if TYPE_CHECKING:
    from tailrace.gateway.conversation import Conversation

T = TypeVar("T")
Reply = bytes | tuple[bytes, ...]
"""A reply, maybe in parts of which others send the same ones."""

_DEFAULT_AWAIT: Final = 1.0
_LEFT_TO_UPSTREAM: Final = (b"collation", b"let", b"explain")
"""Options whose streams the upstream serves itself."""
_NEEDS_ROUTER: Final = (
    "a gateway before config servers cannot serve this change stream: what the engine does not serve is passed on, and "
    "needs a mongos upstream; without updateLookup, collation and let, and with known stages, it can"
)
_NO_LOGIN: Final = "command getMore requires authentication"
_SECONDS_TO_REACH_NOW: Final = 1.0
_PAUSE: Final = 0.01


class ChangeStreamCommands:
    """Answers one client's commands about change streams."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._gateway = conversation.gateway

    async def aggregate(self, asked: Command) -> Reply | None:
        """Open a change stream; any other aggregation goes on to the upstream."""
        body = asked.message.body
        if not _begins_with_change_stream(body):
            return await self._conversation.pass_through(asked)
        is_known = not asked.message.sequences and not any(raw.find(body, name) for name in _LEFT_TO_UPSTREAM)
        if not is_known or len(body) > MOST_SERVED_HERE:
            return await self._leave_to_upstream(asked)
        await self._check_capacity()
        privileges = await self._conversation.login.privileges()
        refused = await self._reachable(self._gateway.validation.refusal_of_open(self._conversation, asked))
        if refused is not None:
            return refused
        command = asked.fields
        try:
            spec = parse_command(command, asked.database, self._gateway.hub.dialect)
            if not self._gateway.proof.serves(spec):
                by_shards = self._gateway.proof.by_shards(spec)
                if by_shards is None:
                    return await self._leave_to_upstream(asked)
                self._gateway.counts.left_to_upstream += 1
                spec = by_shards
            stage = command["pipeline"][0]["$changeStream"]
            positions = read_positions(stage.get("resumeAfter") or stage.get("startAfter"))
            opening = self._gateway.streams.open(spec, positions, owner=self._conversation.owner)
            subscription = await self._reachable(opening)
        except StreamRefused:  # the upstream has just found nothing wrong with it, so it knows more than the engine
            return await self._leave_to_upstream(asked)
        try:
            batch = await self._first_batch(subscription, _first_batch_size(command))
            if not self._gateway.proof.allows(spec, batch):
                self._gateway.streams.close_soon(subscription)
                return await self._leave_to_upstream(asked)
            return await self._first_reply(asked, subscription, batch, spec, privileges)
        except BaseException:
            self._gateway.streams.close_soon(subscription)
            raise

    async def _check_capacity(self) -> None:
        """Refuse a stream beyond those that the client may have, before it costs anything."""
        users, conversation = await self._conversation.users(), self._conversation
        try:
            self._gateway.cursors.check_capacity(users, conversation.address)
        except StreamRefused as error:
            self._gateway.refuse("stream", conversation.peer, ", ".join(sorted(users)), error.message)
            raise

    async def _first_reply(
        self, asked: Command, subscription: AnySubscription, batch: Batch, spec: StreamSpec, privileges: bytes
    ) -> Reply:
        """Make the cursor, unless the stream has ended already."""
        namespace = spec.scope.namespace
        if subscription.is_closed:
            return self._reply(b"firstBatch", batch, 0, namespace)
        owner, address = await self._conversation.users(), self._conversation.address
        session = SessionId.of(asked.fields.get("lsid"), owner)
        cursors = self._gateway.cursors
        cursor = cursors.open(
            subscription, namespace, session, owner, asked.fields, privileges, address, asked.api, spec
        )
        cursor.events += len(batch.events)
        return self._reply(b"firstBatch", batch, cursor.id, namespace)

    async def _leave_to_upstream(self, asked: Command) -> Reply | None:
        """Let the upstream serve one stream itself: it knows what the engine does not.

        A config server would give its own events in place of the cluster's.
        """
        if isinstance(self._gateway.hub, ClusterHub) and not await self._gateway.upstream.is_router():
            raise StreamRefused(_NEEDS_ROUTER, server_code=server_codes.COMMAND_NOT_SUPPORTED)
        self._gateway.counts.left_to_upstream += 1
        users, target = await self._conversation.users(), asked.field(b"aggregate")
        collection = "$cmd.aggregate" if target is None or target.kind != raw.STRING else raw.to_python(*target)
        namespace = f"{asked.database}.{collection}"
        self._gateway.cursors.log_left_to_upstream(users, self._conversation.address, namespace)
        return await self._conversation.pass_through(asked)

    async def get_more(self, asked: Command) -> Reply | None:
        """Read on in a change stream; any other cursor is the upstream's."""
        kind, begin, _ = asked.spans[b"getMore"]
        number = raw.number_at(asked.message.body, kind, begin)
        cursor = self._gateway.cursors.get(int(number)) if isinstance(number, int) else None
        if cursor is None:
            return await self._conversation.pass_through(asked)
        validation, conversation = self._gateway.validation, self._conversation
        is_usual = validation.is_usual_get_more(conversation, asked, cursor)
        wrong = None if is_usual else await validation.refusal_of_get_more(conversation, asked)
        if wrong is not None:
            return wrong
        command = asked.fields
        await self._check_owner(cursor, asked)
        max_events = _to_int32(command.get("batchSize") or 0) or None
        seconds = _seconds_to_wait(command)
        identity = await conversation.login.identity()
        if is_usual:
            conversation.last_get_more = RepeatedGetMore.of(asked, cursor, identity, max_events, seconds)
        return await self._read_on(cursor, identity, max_events, seconds)

    async def get_more_again(self, last: RepeatedGetMore) -> Reply | None:
        """Read on as the last time; None when it is another client now, or the cursor is gone."""
        cursor = last.cursor
        if self._gateway.cursors.get(cursor.id) is not cursor:
            return None
        identity = await self._conversation.login.identity()
        if identity is not last.identity:
            return None
        return await self._read_on(cursor, identity, last.max_events, last.seconds)

    async def _read_on(self, cursor: Cursor, identity: Identity, max_events: int | None, seconds: float) -> Reply:
        refused = None if identity is NOBODY else await self._still_refused(cursor)
        if refused is not None:
            await SessionCommands(self._conversation).close(cursor)
            return refused
        if cursor.in_use:
            message = f"cursor id {cursor.id} is already in use"
            raise StreamRefused(message, server_code=143)
        cursor.in_use = True
        try:
            waiting = self._next_batch(cursor.subscription, max_events, seconds)
            batch = await self._conversation.while_there(waiting)
            self._check_trusted(cursor, batch)
        except BaseException:
            self._gateway.cursors.remove(cursor)
            self._gateway.streams.close_soon(cursor.subscription)
            raise
        finally:
            cursor.in_use = False
            cursor.used_at = time.monotonic()
        if self._gateway.cursors.get(cursor.id) is None:
            await self._gateway.streams.close(cursor.subscription)
            raise StreamRefused("operation was interrupted", server_code=237)
        cursor.events += len(batch.events)
        if cursor.subscription.is_closed:
            self._gateway.cursors.remove(cursor)
            return self._reply(b"nextBatch", batch, 0, cursor.namespace)
        return self._reply(b"nextBatch", batch, cursor.id, cursor.namespace)

    def _check_trusted(self, cursor: Cursor, batch: Batch) -> None:
        """End a stream before it hands out what the engine has not proved: the driver resumes, and the upstream serves.

        The whole batch is left to the upstream, so that nothing of it is missing or comes twice. A stream that shards
        serve ends likewise once the engine may serve it, when it has nothing to hand out.
        """
        spec, proof = cursor.spec, self._gateway.proof
        if spec is None:
            return
        if not proof.allows(spec, batch):
            message = "the stream goes on upstream: the engine has not proved itself on what comes next"
        elif spec.served_by_shards and not batch.events and proof.serves(spec):
            message = "the stream goes on from the oplogs: the engine has proved itself"
        else:
            return
        raise ChangeStreamError(message, server_code=server_codes.INTERRUPTED_AT_SHUTDOWN)

    async def _next_batch(self, subscription: AnySubscription, max_events: int | None, seconds: float) -> Batch:
        owner, streams = self._conversation.owner, self._gateway.streams
        batch = await self._reachable(streams.next_batch(subscription, max_events, seconds, owner=owner))
        if self._gateway.streams.stopping.is_set() and not batch.events:
            raise ChangeStreamError("the gateway is stopping", server_code=server_codes.INTERRUPTED_AT_SHUTDOWN)
        return batch

    async def _first_batch(self, subscription: AnySubscription, max_events: int) -> Batch:
        """Read up to what had happened when the stream was opened, as a server does before it answers `aggregate`."""
        deadline = time.monotonic() + _SECONDS_TO_REACH_NOW
        batch = await self._next_batch(subscription, max_events, 0)
        while max_events and not batch.events and not subscription.is_closed and not subscription.has_reached_opening:
            if time.monotonic() > deadline:
                break
            before = subscription.position
            batch = await self._next_batch(subscription, max_events, 0)
            if not batch.events and subscription.position == before:
                await asyncio.sleep(_PAUSE)
        return batch

    async def _reachable(self, work: Awaitable[T]) -> T:
        """Answer as a router does when a shard cannot be reached: the client may try again."""
        try:
            return await work
        except ChangeStreamError:
            raise
        except TailraceError as error:
            raise ChangeStreamError(error.message, server_code=server_codes.HOST_UNREACHABLE) from error

    async def _check_owner(self, cursor: Cursor, asked: Command) -> None:
        """Refuse a cursor to all but the user, session and namespace that it was opened for."""
        users = await self._conversation.users()
        if cursor.owner != users:
            message = f"cursor id {cursor.id} was not created by the authenticated user"
            raise StreamRefused(message, server_code=server_codes.UNAUTHORIZED)
        dialect = self._gateway.hub.dialect
        session = SessionId.of(asked.fields.get("lsid"), users)
        in_session = None if cursor.session == session else _wrong_session(cursor, session, dialect, users)
        namespace, api = _wrong_namespace(cursor, asked), _wrong_api(cursor, asked)
        found = [in_session, namespace, api] if dialect.since(6, 0) else [in_session, api, namespace]
        for wrong in found if dialect.since(5, 0) else [namespace, in_session]:
            if wrong is not None:
                raise wrong

    async def _still_refused(self, cursor: Cursor) -> bytes | None:
        """Ask the upstream whether the client may still watch what it watches, when its privileges have changed."""
        login = self._conversation.login
        privileges = await login.privileges()
        if privileges == cursor.privileges:
            return None
        if not await login.watch_is_refused(cursor.opened_by):
            cursor.privileges = privileges
            return None
        known = await self._conversation.users()
        what = f"not authorized for getMore with cursor id {cursor.id}" if known else _NO_LOGIN
        return self._conversation.with_times(replies.failure(what, server_codes.UNAUTHORIZED))

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
    stage = next(raw.elements(body, pipeline[1]), None)  # whatever its name: servers go by the order
    if stage is None or stage[0] != raw.DOCUMENT:
        return False
    return raw.find(body, b"$changeStream", stage[2]) is not None


def _wrong_namespace(cursor: Cursor, asked: Command) -> StreamRefused | None:
    namespace = f"{asked.database}.{asked.fields.get('collection')}"
    if namespace == cursor.namespace:
        return None
    message = f"Requested getMore on namespace '{namespace}', but cursor belongs to a different namespace"
    return StreamRefused(f"{message} {cursor.namespace}", server_code=server_codes.UNAUTHORIZED)


def _wrong_api(cursor: Cursor, asked: Command) -> StreamRefused | None:
    if asked.api == cursor.api:
        return None
    message = f"API parameter mismatch: getMore used params {asked.api}, the cursor-creating command used {cursor.api}"
    return StreamRefused(message, server_code=347)


def _wrong_session(cursor: Cursor, session: SessionId | None, dialect: Dialect, users: frozenset[str]) -> StreamRefused:
    """Refuse a `getMore` in another session than the one the cursor was opened in, or in one, or without.

    Seen on all versions: where users authenticate, that is a matter of privileges.
    """
    opened, used = (None if each is None else each.shown(dialect) for each in (cursor.session, session))
    if users:
        message = f"Cursor session id ({opened or 'none'}) is not the same as the operation context's session id"
        return unauthorized(f"{message} ({used or 'none'})")
    begin = f"Cannot run getMore on cursor {cursor.id}, which was"
    if opened is None:
        return StreamRefused(f"{begin} not created in a session, in session {used}", server_code=50736)
    if used is None:
        return StreamRefused(f"{begin} created in session {opened}, without an lsid", server_code=50737)
    return StreamRefused(f"{begin} created in session {opened}, in session {used}", server_code=50738)


def _first_batch_size(command: Mapping[str, Any]) -> int:
    size = command["cursor"].get("batchSize")
    return FIRST_BATCH if size is None else _to_int32(size)


def _to_int32(number: Any) -> int:
    """Read a number as a server does: not a number is 0, and what is too large the largest."""
    value = float(to_decimal(number)) if isinstance(number, Decimal128) else number
    if value != value:
        return 0
    return int(min(max(value, -(2**31)), 2**31 - 1))


def _seconds_to_wait(command: Mapping[str, Any]) -> float:
    given = command.get("maxTimeMS")
    return _DEFAULT_AWAIT if given is None else _to_int32(given) / 1000
