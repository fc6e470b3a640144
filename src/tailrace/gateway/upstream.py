"""The servers behind the gateway, and one connection to them for each client."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import bson
from pymongo import MongoClient
from pymongo.topology_description import TopologyDescription
from pymongo.uri_parser import parse_uri

from tailrace import raw
from tailrace.errors import BadFrame, ServerUnreachable, SettingsError
from tailrace.gateway.auth_probe import AuthProbe
from tailrace.gateway.relay import PIECE, ReplyOutlet, pieces_of
from tailrace.gateway.wire import HEADER_SIZE, NO_FLAGS, OP_MSG, Head, Message, Parts, read_head, read_rest, size_of

_SECONDS_TO_REMEMBER: Final = 1.0
_SECONDS_TO_CONNECT: Final = 10.0
_SECONDS_FOR_A_MESSAGE: Final = 120.0
_SECONDS_FOR_AN_ANSWER: Final = 15.0
"""How long a question of the gateway's own may take; a client's may take as long as the client waits."""


class Upstream:
    """Where the primary is, and how to speak to it."""

    def __init__(self, client: MongoClient[Any], uri: str) -> None:
        self._client = client
        self._tls = _tls_context(uri)
        self._lock = asyncio.Lock()
        self._asked: UpstreamConnection | None = None
        self._greetings: dict[str, tuple[float, bytes]] = {}
        self._has_certificate = "tlsCertificateKeyFile" in parse_uri(uri)["options"]
        self.auth = AuthProbe(self.connect, self._primary)

    async def connect(self) -> UpstreamConnection:
        """Open a connection to the primary, which is waited for while one is elected."""
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                host, port = await self._primary()
                reader, writer = await asyncio.open_connection(host, port, ssl=self._tls, limit=PIECE)
        except (OSError, TimeoutError) as error:
            raise ServerUnreachable(f"the upstream cannot be reached: {error or 'no primary'}") from error
        return UpstreamConnection(reader, writer, (host, port))

    async def _primary(self) -> tuple[str, int]:
        known = _writable_in(self._client.topology_description)
        if known is not None:
            return known
        while (found := await asyncio.to_thread(lambda: self._client.primary or self._client.address)) is None:
            await asyncio.sleep(0.1)
        return found[0], found[1]

    async def greeting(self, name: str) -> bytes:
        """Give the answer to a handshake by this name, at most a second old."""
        async with self._lock:
            greeting = self._greetings.get(name)
            if greeting is None or time.monotonic() - greeting[0] > _SECONDS_TO_REMEMBER:
                greeting = time.monotonic(), await self._ask(name)
                self._greetings[name] = greeting
        return greeting[1]

    async def is_router(self) -> bool:
        """Return whether a mongos answers: it serves the streams of a whole cluster."""
        message = raw.field(await self.greeting("isMaster"), b"msg")
        return message is not None and message.data == raw.string("isdbgrid")

    async def _ask(self, name: str) -> bytes:
        """Ask on a connection that is kept for this; it may have been lost since the last time."""
        message = Message(bson.encode({name: 1, "helloOk": True, "$db": "admin"}), request_id=1)
        if self._asked is not None:
            try:
                reply = await self._asked.ask(message)
                if reply is not None and _is_writable(reply.body):
                    return reply.body
            except ServerUnreachable:
                self._greetings.clear()
            self._asked.close()
            self._asked = None
        self._asked = await self.connect()
        reply = await self._asked.ask(message)
        if reply is None:
            raise ServerUnreachable("the upstream did not answer")
        return reply.body

    def close(self) -> None:
        """Hang up."""
        self.auth.close()
        if self._asked is not None:
            self._asked.close()

    async def requires_auth(self) -> bool:
        """Return whether the upstream refuses clients that have not authenticated."""
        known = self.auth.known
        return await self.auth.ask() if known is None else known

    async def requires_auth_at_start(self) -> bool:
        """Return the same, and refuse an upstream that takes nobody without a certificate: clients have none here."""
        try:
            return await self.requires_auth()
        except ServerUnreachable as error:
            if self._tls is None or not self._has_certificate:
                raise
            raise SettingsError(
                f"connections without a client certificate are refused upstream: {error.message}",
                hint="The gateway lends its own certificate to nobody. Start the servers with "
                "--tlsAllowConnectionsWithoutCertificates (net.tls.allowConnectionsWithoutCertificates).",
            ) from error


class UpstreamConnection:
    """One client's own connection: its authentication, its transactions, its cursors."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: tuple[str, int]) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer

    @property
    def is_lost(self) -> bool:
        """Whether the upstream has hung up."""
        return self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing()

    async def exchange(self, message: Message, outlet: ReplyOutlet | None = None) -> Message | None:
        """Pass a message on and give the answer; None when it wants none, or when the outlet has had it in pieces."""
        with _speaking():
            await self._send(message.to_upstream())
            head = await read_head(self._reader, seconds=_SECONDS_FOR_A_MESSAGE) if message.expects_reply else None
        if not message.expects_reply:
            return None
        if head is not None and outlet is not None and head.length > PIECE:
            if outlet.takes_pieces:
                await self._pass_pieces(head, outlet)
                return None
            await outlet.wait_for_capacity(head.length)
        with _speaking():
            reply = None if head is None else await read_rest(self._reader, head, seconds=_SECONDS_FOR_A_MESSAGE)
        if reply is None:
            raise ServerUnreachable("the upstream closed the connection")
        return reply

    async def _send(self, parts: Parts) -> None:
        if size_of(parts) <= PIECE:
            self._writer.write(b"".join(parts))
            await self._writer.drain()
            return
        for piece in pieces_of(parts):
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)  # others come in between

    async def _pass_pieces(self, head: Head, outlet: ReplyOutlet) -> None:
        """Pass a large answer on as it comes: a body, and nothing else."""
        with _speaking():
            begin = await self._reader.readexactly(len(NO_FLAGS))
            if head.opcode != OP_MSG or begin != NO_FLAGS:
                raise BadFrame("a large answer with flags or document sequences")
        left = head.length - HEADER_SIZE - len(begin)
        await outlet.begin(left)
        while left:
            with _speaking():
                async with asyncio.timeout(_SECONDS_FOR_A_MESSAGE):
                    piece = await self._reader.read(min(left, PIECE))
            if not piece:
                raise ServerUnreachable("the upstream closed the connection")
            left -= len(piece)
            await outlet.send(piece)

    async def ask(self, message: Message) -> Message | None:
        """Ask a question of the gateway's own: a server that is silent must not hold up all who wait for the answer."""
        try:
            async with asyncio.timeout(_SECONDS_FOR_AN_ANSWER):
                return await self.exchange(message)
        except TimeoutError:
            self.close()  # its answer may come yet, and would be taken for that of the next question
            raise ServerUnreachable(f"the upstream did not answer within {_SECONDS_FOR_AN_ANSWER:g} s") from None

    async def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run a command of the gateway's own on the client's behalf."""
        reply = await self.ask(Message(bson.encode(command), request_id=1))
        return {} if reply is None else dict(raw.to_python(raw.DOCUMENT, reply.body))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


@contextmanager
def _speaking() -> Iterator[None]:
    """Turn what goes wrong while the upstream is spoken to into one error."""
    try:
        yield
    except BadFrame as error:
        raise ServerUnreachable(f"the upstream does not speak the wire protocol: {error.message}") from error
    except (OSError, EOFError) as error:
        raise ServerUnreachable(f"the connection to the upstream broke: {error}") from error


def _writable_in(topology: TopologyDescription) -> tuple[str, int] | None:
    """Give the server that takes writes, when the driver knows it already; asking it may block."""
    found = next((server for server in topology.server_descriptions().values() if server.is_writable), None)
    return None if found is None else (found.address[0], found.address[1] or 27017)


def error_code(reply: bytes) -> int | None:
    """Give the code of a reply that is an error; None when it is none."""
    code = raw.find(reply, b"code")
    return raw.int32_at(reply, code[1]) if code is not None and code[0] == raw.INT32 else None


def _is_writable(greeting: bytes) -> bool:
    """Return whether whoever answered is a primary, or a router."""
    return any(
        found is not None and found.data == raw.boolean(True)
        for found in (raw.field(greeting, name) for name in (b"ismaster", b"isWritablePrimary"))
    )


def _tls_context(uri: str) -> ssl.SSLContext | None:
    """Give the TLS settings of a URI for the connections of clients.

    The gateway's own certificate is left out: mongod would take whoever speaks on such a connection for the gateway
    as soon as it asks for MONGODB-X509.
    """
    options = parse_uri(uri)["options"]
    if not options.get("tls"):
        return None
    context = ssl.create_default_context(cafile=options.get("tlsCAFile"))
    if options.get("tlsAllowInvalidHostnames") or options.get("tlsAllowInvalidCertificates"):
        context.check_hostname = False
    if options.get("tlsAllowInvalidCertificates"):
        context.verify_mode = ssl.CERT_NONE
    return context
