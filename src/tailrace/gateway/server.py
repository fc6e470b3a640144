"""The gateway: listens, gives each client a conversation, and ends them all with a resumable error when it stops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog
from pymongo import MongoClient

from tailrace.errors import BadFrame, ServerUnreachable, SettingsError
from tailrace.gateway.cursors import Cursors
from tailrace.gateway.fail_points import FailPoints
from tailrace.gateway.streams import AnyHub, Streams
from tailrace.gateway.upstream import Upstream


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """How a gateway behaves."""

    address: str = "127.0.0.1"
    port: int = 0
    watch_only: bool = False
    """Whether everything but change streams is refused."""
    allow_open: bool = False
    """Whether it may listen beyond loopback although the upstream lets everybody in."""
    test_commands: bool = False
    """Whether clients may configure `failCommand`."""
    certificate: Path | None = None
    """A PEM file with the certificate and key that clients see; None is without TLS."""
    max_connections: int = 20_000
    seconds_for_a_message: float = 30.0
    cursor_timeout: float = 600.0


@dataclass(slots=True)
class GatewayCounts:
    """What the gateway has done so far."""

    connections: int = 0
    """Clients that are connected now."""
    dropped: int = 0
    """Clients that were dropped because of what they sent, or did not send."""
    commands: int = 0
    passed: int = 0
    """Commands that went on to the upstream."""
    events: int = 0
    event_bytes: int = 0


class Gateway:
    """Serves change streams from a hub, and passes everything else to the upstream."""

    def __init__(
        self, hub: AnyHub, upstream: Upstream, streams: Streams, options: GatewayOptions, requires_auth: bool
    ) -> None:
        self.hub = hub
        self.upstream = upstream
        self.streams = streams
        self.options = options
        self.requires_auth = requires_auth
        self.cursors = Cursors()
        self.fail_points = FailPoints()
        self.counts = GatewayCounts()
        self._clients: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()
        self.port = 0

    @classmethod
    @asynccontextmanager
    async def serve(
        cls, hub: AnyHub, client: MongoClient[Any], uri: str, options: GatewayOptions | None = None
    ) -> AsyncIterator[Gateway]:
        """Listen while the block runs; then end all cursors, so that clients resume elsewhere."""
        options = options or GatewayOptions()
        upstream = Upstream(client, uri)
        requires_auth = await upstream.requires_auth()
        if not requires_auth and not options.allow_open and not ip_address(options.address).is_loopback:
            raise SettingsError(
                f"the upstream lets everybody in, and so would the gateway at {options.address}",
                hint="Listen at 127.0.0.1, switch authentication on upstream, or give --allow-open.",
            )
        gateway = cls(hub, upstream, Streams(hub, client), options, requires_auth)
        try:
            server = await asyncio.start_server(
                gateway._accept, options.address, options.port, ssl=_tls_context(options.certificate), limit=1 << 20
            )
        except OSError as error:
            message = f"cannot listen at {options.address}:{options.port}: {error.strerror}"
            raise SettingsError(message, hint="Choose another address or port.") from None
        gateway.port = server.sockets[0].getsockname()[1]
        sweeper = asyncio.create_task(gateway._sweep())
        try:
            yield gateway
        finally:
            sweeper.cancel()
            server.close()
            await gateway._stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from tailrace.gateway.conversation import Conversation

        task = asyncio.current_task()
        peer = writer.get_extra_info("peername")
        if task is None or len(self._clients) >= self.options.max_connections:
            self._log.warning("client_refused", peer=peer, reason="too many connections")
            writer.close()
            return
        self._clients.add(task)
        self.counts.connections += 1
        conversation = Conversation(self, reader, writer)
        try:
            await conversation.run()
        except BadFrame as error:
            self.counts.dropped += 1
            self._log.warning("client_dropped", peer=peer, reason=error.message)
        except ServerUnreachable as error:
            self._log.warning("upstream_lost", peer=peer, reason=error.message)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the gateway stops
        finally:
            self._clients.discard(task)
            self.counts.connections -= 1
            conversation.close()

    async def _sweep(self) -> None:
        """Close cursors that nobody asks for any more."""
        while True:
            await asyncio.sleep(min(10.0, self.options.cursor_timeout / 2))
            for cursor in self.cursors.idle_for(self.options.cursor_timeout):
                self._log.info("cursor_timed_out", cursor=cursor.id, namespace=cursor.namespace)
                self.cursors.remove(cursor)
                await self.streams.close(cursor.subscription)

    async def _stop(self) -> None:
        """Answer what waits with a resumable error, then hang up."""
        for cursor in self.cursors:
            await self.streams.close(cursor.subscription) if not cursor.in_use else None
        self.streams.stop()
        if self._clients:
            await asyncio.wait(self._clients, timeout=0.5)
        for task in tuple(self._clients):
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients, timeout=5)


def _tls_context(certificate: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"{certificate} is no certificate with its key: {error}", hint="Give a PEM file.") from None
    return context
