"""The conversation with one client: what the gateway answers itself, and what goes on to the upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import bson

from tailrace import raw, server_codes
from tailrace.errors import BadFrame, BsonMalformed, ChangeStreamError, ServerUnreachable, StreamRefused
from tailrace.gateway import replies
from tailrace.gateway.change_streams import ChangeStreamCommands, Reply
from tailrace.gateway.command import MOST_READ_HERE, Command, unauthorized
from tailrace.gateway.compression import NAMES
from tailrace.gateway.connection import Connection
from tailrace.gateway.fail_points import FailPoint
from tailrace.gateway.hello import are_names, host_and_port, is_awaitable, is_usual_hello
from tailrace.gateway.login import Login, mechanism
from tailrace.gateway.relay import ReplyOutlet
from tailrace.gateway.repeated import RepeatedGetMore
from tailrace.gateway.sessions import SessionCommands
from tailrace.gateway.upstream import UpstreamConnection, error_code
from tailrace.gateway.wire import Message
from tailrace.rate_limited_log import describe

if TYPE_CHECKING:
    from tailrace.gateway.server import Gateway

T = TypeVar("T")

_HELLO: Final = frozenset({"hello", "ismaster", "isMaster"})
_AUTHENTICATION: Final = frozenset({"saslStart", "saslContinue", "authenticate", "logout"})
_END_SESSIONS: Final = frozenset({"endSessions", "killSessions", "killAllSessions", "killAllSessionsByPattern"})
_ALWAYS_PASSED: Final = (
    _AUTHENTICATION
    | _END_SESSIONS
    | {"ping", "buildInfo", "buildinfo", "connectionStatus", "startSession", "refreshSessions", "whatsmyuri"}
)
"""What a gateway that only serves change streams still passes on: who the client is, and how the server is."""
_BEFORE_LOGIN: Final = (
    _HELLO
    | (_AUTHENTICATION - {"logout"})
    | {"ping", "buildInfo", "buildinfo", "connectionStatus", "whatsmyuri", "getnonce", "listCommands"}
)
"""What a server with authentication answers to clients that have not authenticated. Nothing else is passed on for
them: on the server's own host, before it has users, it would take them for its administrator (localhost exception)."""
_X509: Final = "MONGODB-X509"


class Conversation:
    """One client. Its commands come one after another; so do the answers."""

    __slots__ = ("_connection", "_greeting", "_is_over", "_upstream", "app_name", "gateway", "last_get_more", "login")

    def __init__(self, gateway: Gateway, connection: Connection) -> None:
        self.gateway = gateway
        self.app_name = ""
        self._connection = connection
        self._upstream: UpstreamConnection | None = None
        self._greeting = b""
        self._is_over = False
        self.last_get_more: RepeatedGetMore | None = None
        self.login = Login(self)

    async def run(self) -> None:
        """Answer until the client goes, or has to."""
        while not self._is_over:
            message = await self._connection.read()
            if message is None:
                return
            self.gateway.counts.commands += 1
            reply = await self._answer(message)
            if reply is not None and message.expects_reply:
                parts = (reply,) if isinstance(reply, bytes) else reply
                await self._connection.write(message, parts)

    async def while_there(self, work: Awaitable[T]) -> T:
        """Wait for something, as long as the client does."""
        return await self._connection.while_there(work)

    @property
    def peer(self) -> object:
        """The client's address and port."""
        return self._connection.peer

    @property
    def address(self) -> str:
        """The client's address."""
        return self._connection.address

    def trust(self, is_allowed: bool) -> None:
        """Let the client send what a server takes, or only what a login needs."""
        if self._connection.share.is_stranger is not is_allowed:
            return
        options = self.gateway.options
        self._connection.largest = options.message_bytes if is_allowed else options.login_message_bytes
        self._connection.share.is_stranger = not is_allowed
        if is_allowed:
            self.gateway.strangers.discard(self._connection)

    def set_owner(self, users: frozenset[str]) -> None:
        """Note who the client is: what it has of anything is counted with the rest of the same users."""
        self._connection.owner = ", ".join(sorted(users))

    @property
    def owner(self) -> str:
        """Who the client is, or where."""
        return self._connection.owner or self.address

    def end(self) -> None:
        """Hang up after the next answer, and upstream at once."""
        self._is_over = True
        if self._upstream is not None:
            self._upstream.close()

    def close(self) -> None:
        """Hang up on both sides."""
        self.gateway.strangers.discard(self._connection)
        self.login.close()
        self._connection.close()
        if self._upstream is not None:
            self._upstream.close()

    # --- answers

    async def _answer(self, message: Message) -> Reply | None:
        """Answer a message; whatever goes wrong with it is an error of its own, and ends neither client nor gateway."""
        try:
            last = self.last_get_more
            if last is not None and last.fits(message) and not self.gateway.fail_points.are_set:
                reply = await ChangeStreamCommands(self).get_more_again(last)
                if reply is not None:
                    return reply
            self.last_get_more = None
            return await self._answer_command(self._parse(message))
        except ChangeStreamError as error:
            labels_resumable = self.gateway.hub.dialect.since(4, 4)
            return self.with_times(replies.refusal(error, labels_resumable=labels_resumable))
        except BsonMalformed as error:
            self.count_fault()
            return _no_bson(error)
        except (BadFrame, ServerUnreachable, ConnectionError):
            raise  # the connection is over
        except Exception as error:
            self.gateway.counts.failed += 1
            self.gateway.log.warning("command_failed", peer=self.peer, reason=describe(error))
            return replies.failure("the gateway failed to run this command", 1)

    def _parse(self, message: Message) -> Command:
        try:
            return Command.parse(message, self.gateway.hub.dialect)
        except ChangeStreamError:
            self.count_fault()
            raise

    def count_fault(self) -> None:
        """Count nonsense that the client has sent: it pays with its time."""
        self._connection.share.count_fault()

    async def _answer_command(self, command: Command) -> Reply | None:
        failing = self.gateway.fail_points.hit(command.name, self.app_name)
        if failing is None:
            return await self._run(command)
        failed = await self._fail(failing)
        if failed is not None or self._is_over:
            return failed
        reply = await self._run(command)
        return reply if reply is None else _with_write_concern_error(reply, failing.data)

    async def _run(self, command: Command) -> Reply | None:
        if command.name not in _BEFORE_LOGIN and not await self.users() and await self.gateway.upstream.requires_auth():
            self.count_fault()
            raise unauthorized(f"command {command.name} requires authentication")
        if command.name in _READ_HERE:
            self._check_size(command)
        of_sessions = _OF_SESSIONS.get(command.name)
        if of_sessions is not None:
            return await of_sessions(SessionCommands(self), command)
        of_streams = _OF_STREAMS.get(command.name)
        if of_streams is not None:
            return await of_streams(ChangeStreamCommands(self), command)
        return await _ANSWERS.get(command.name, Conversation.pass_through)(self, command)

    def _check_size(self, command: Command) -> None:
        """Refuse what would take long to decode, while all others wait."""
        if len(command.message.body) > MOST_READ_HERE:
            self.count_fault()
            message = f"{command.name} of {len(command.message.body)} bytes, where the gateway takes {MOST_READ_HERE}"
            raise StreamRefused(message, server_code=server_codes.BSON_OBJECT_TOO_LARGE)

    async def pass_on(self, command: Command) -> bytes | None:
        """Let the upstream answer the very bytes that came, on the client's own connection."""
        return await self._relay(command.name, command.message)

    async def pass_through(self, command: Command) -> bytes | None:
        """Do the same where nobody here wants to see the answer: a large one goes to the client as it comes."""
        return await self._relay(command.name, command.message, ReplyOutlet(self._connection, command.message))

    async def _relay(self, name: str, message: Message, outlet: ReplyOutlet | None = None) -> bytes | None:
        if self.gateway.options.watch_only and name not in _ALWAYS_PASSED | _HELLO:
            return replies.failure(
                f"this gateway serves change streams only (--watch-only): send {name} to the server itself", 115
            )
        self.gateway.counts.passed += 1
        upstream = await self.connected()
        exchange = upstream.exchange(message, outlet)
        reply = await (self.while_there(exchange) if message.expects_reply else exchange)
        if reply is None:
            return None
        self.gateway.streams.note_cluster_time(reply.body)
        if error_code(reply.body) in server_codes.NOT_PRIMARY:
            self._is_over = True  # the next connection of this client goes to the new primary
        return reply.body

    async def connected(self) -> UpstreamConnection:
        """Give the client's own connection to the upstream, which begins with what the client said of itself."""
        if self._upstream is None:
            self._upstream = await self.gateway.upstream.connect()
            if self._connection.share.is_stranger:
                self.gateway.strangers.add(self._connection)
            if self._greeting:
                await self._upstream.ask(Message(self._greeting, request_id=1))
        return self._upstream

    async def _hello(self, command: Command) -> bytes | None:
        """Let the upstream answer the handshake (it may begin to authenticate), then speak as the gateway.

        Clients that only watch, and those that only look whether the gateway is alive, all get the answer that the
        upstream gave to one of them a moment ago, and so have no connection there.
        """
        asked, message = command.fields, command.message
        self.app_name = self.app_name or _app_name(asked.get("client"))
        left_out = [b"topologyVersion", b"maxAwaitTimeMS"] if is_awaitable(asked) else []
        if are_names(asked.get("compression", [])):
            left_out.append(b"compression")
        speculative = asked.get("speculativeAuthenticate")
        if speculative is not None:
            self.login.forget()
        if mechanism(speculative) == _X509:
            speculative = None
            left_out.append(b"speculativeAuthenticate")  # the client then sends `authenticate`, and learns why not
        greeting = message.with_body(raw.without(message.body, *left_out))
        claimed = None
        if isinstance(speculative, Mapping):
            claimed = self.login.begin(speculative.get("payload"), speculative.get("db", command.database))
        is_usual = command.database == "admin" and is_usual_hello(greeting.body, asked)
        if self._upstream is None and is_usual and not (self._greeting and "client" in asked):
            self._greeting = greeting.body if "client" in asked else self._greeting
            reply: bytes | None = await self.gateway.upstream.greeting(command.name)
        else:
            reply = await self._relay(command.name, greeting)
            if reply is not None and speculative is not None:
                await self.login.finish(reply, claimed)
        if reply is None or raw.find(reply, b"maxWireVersion") is None:
            return reply
        options = self.gateway.options
        address = options.advertise or host_and_port(self._connection.local_address)
        offered = asked.get("compression", [])
        compressors = [name for name in offered if name in NAMES] if are_names(offered) else []
        return options.present.hello(reply, command.name, address, compressors)

    async def _authenticate(self, command: Command) -> bytes | None:
        return await self.login.authenticate(command)

    async def users(self) -> frozenset[str]:
        """Give who this client is."""
        return (await self.login.identity()).users

    def with_times(self, reply: bytes) -> bytes:
        """Add the times that a server adds to every reply."""
        return raw.append(reply, self.times())

    def times(self) -> bytes:
        """Give those times, as elements."""
        return self.gateway.replies.times(self.gateway.streams.cluster_time, self.gateway.hub.reached)

    # --- fail points

    async def _configure_fail_point(self, command: Command) -> bytes | None:
        known = self.gateway.fail_points.knows(command.fields)
        if not known or not self.gateway.options.test_commands:
            return await self.pass_on(command)
        self.gateway.fail_points.configure(command.fields)
        return self.with_times(replies.ok())

    async def _fail(self, point: FailPoint) -> bytes | None:
        """Do to a command what the fail point says; None when it shall run after all."""
        data = point.data
        if data.get("blockConnection"):
            await asyncio.sleep(data.get("blockTimeMS", 0) / 1000)
        if data.get("closeConnection"):
            self._is_over = True
            return None
        if data.get("errorCode") is None:
            return None
        code = int(data["errorCode"])
        labels = tuple(data.get("errorLabels", ()))
        if point.knows_cursor and code in server_codes.RESUMABLE and self.gateway.hub.dialect.since(4, 4):
            labels += (replies.RESUMABLE_LABEL,)
        return self.with_times(replies.failure("Failing command via 'failCommand' failpoint", code, labels))


def _no_bson(error: BsonMalformed) -> bytes:
    """Refuse a command that cannot be decoded; what is nested too deeply, which pymongo says in words, has its code."""
    if "recursion" in error.message:
        return replies.failure("BSONObj exceeds maximum nested object depth", server_codes.OVERFLOW)
    return replies.failure(f"a command that is not BSON: {error.message}", server_codes.INVALID_BSON)


def _app_name(metadata: Any) -> str:
    application = metadata.get("application") if isinstance(metadata, Mapping) else None
    return str(application.get("name", "")) if isinstance(application, Mapping) else ""


def _with_write_concern_error(reply: Reply, data: Mapping[str, Any]) -> bytes:
    """Add the error that a fail point reports beside the answer of a command that has run."""
    whole = reply if isinstance(reply, bytes) else b"".join(reply)
    added = {name: data[name] for name in ("writeConcernError", "errorLabels") if name in data}
    return raw.append(whole, raw.body(bson.encode(added)))


_ANSWERS: Final[dict[str, Callable[[Conversation, Command], Awaitable[bytes | None]]]] = {
    **dict.fromkeys(_HELLO, Conversation._hello),
    **dict.fromkeys(_AUTHENTICATION, Conversation._authenticate),
    "configureFailPoint": Conversation._configure_fail_point,
}
_OF_STREAMS: Final[dict[str, Callable[[ChangeStreamCommands, Command], Awaitable[Reply | None]]]] = {
    "aggregate": ChangeStreamCommands.aggregate,
    "getMore": ChangeStreamCommands.get_more,
}
_READ_HERE: Final = _HELLO | _AUTHENTICATION | _END_SESSIONS | {"getMore", "killCursors", "configureFailPoint"}
"""Commands that the gateway decodes, on the event loop."""
_OF_SESSIONS: Final[dict[str, Callable[[SessionCommands, Command], Awaitable[bytes | None]]]] = {
    **dict.fromkeys(_END_SESSIONS, SessionCommands.end_sessions),
    "killCursors": SessionCommands.kill_cursors,
}
