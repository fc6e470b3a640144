"""The gateway: listens, gives each client a conversation, and ends them all with a resumable error when it stops."""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient

from tailrace.certificate import RenewedCertificate
from tailrace.cluster import ClusterHub
from tailrace.errors import BadFrame, ServerUnreachable, SettingsError, StreamRefused
from tailrace.gateway.connection import Connection
from tailrace.gateway.conversation import Conversation
from tailrace.gateway.cursors import Cursors
from tailrace.gateway.fail_points import FailPoints
from tailrace.gateway.fairness import BucketsByAddress, Fairness, Strangers
from tailrace.gateway.frames import ByteBudget, Frames
from tailrace.gateway.hello import Presentation
from tailrace.gateway.limits import LoginAttempts, Shares
from tailrace.gateway.privileges import PrivilegeChecks
from tailrace.gateway.proving import Believed, Proof
from tailrace.gateway.replies import SharedReplies
from tailrace.gateway.streams import AnyHub, Streams
from tailrace.gateway.upstream import Upstream
from tailrace.gateway.validation import Validation
from tailrace.gateway.wire import MAX_MESSAGE
from tailrace.rate_limited_log import RateLimitedLog, describe
from tailrace.settings_types import is_loopback

_BACKLOG: Final = 4_096
"""How many clients may be connecting at once: after a restart all of them do."""
_ACCEPTS_AT_ONCE: Final = 10
_CLIENTS_PER_STEP: Final = 500
"""How many clients are checked before others have the event loop."""


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
    present: Presentation = Presentation.MONGOS
    """As whom it speaks to drivers."""
    advertise: str | None = None
    """The host and port that drivers of a replica set get; None is the address each of them has connected to."""
    certificate: Path | None = None
    """A PEM file with the certificate and key that clients see; None is without TLS."""
    max_connections: int = 20_000
    seconds_for_a_message: float = 30.0
    message_bytes: int = MAX_MESSAGE
    """How large a message may be, unpacked too."""
    login_message_bytes: int = 64 * 1024
    """How large it may be before the client has authenticated, where the upstream wants that."""
    receive_bytes: int = 256 * 1024 * 1024
    """How much all clients together may have sent that was not answered yet, as much again while it is unpacked, and as
    much again of answers that are compressed."""
    cursor_timeout: float = 600.0
    stage_seconds: float = 2.0
    """The processor time that a stream's own stages may take for one event; who takes more fails alone."""
    seconds_between_checks: float = 0.0
    """How old the upstream's word on a user's privileges may be; by default each getMore waits for a new one."""
    connections_per_address: int = 0
    connections_per_user: int = 0
    streams_per_user: int = 0
    """0 is no limit; where nobody authenticates, the streams of an address are counted."""
    accepts_per_second: float = 500.0
    """How fast clients of one address may connect once ten times as many have; the others wait. 0 is no limit."""
    strangers: int = 256
    """How many clients that have not authenticated may have a connection upstream."""
    login_attempts: int = 10
    """Failed logins of a user from one address, after which each next one has to wait."""
    idle_seconds: float = 0.0
    """How long a client may say nothing; 0 is for ever."""
    access_log: bool = True
    """Whether the log says who opened which stream, from where, for how long and for how many events."""
    client_ca: Path | None = None
    """A PEM file with the authorities whose certificates clients have to show."""


@dataclass(slots=True)
class GatewayCounts:
    """What the gateway has done so far."""

    connections: int = 0
    """Clients that are connected now."""
    dropped: int = 0
    """Clients that were dropped because of what they sent, or did not send."""
    refused: int = 0
    """Connections, logins and streams over a limit."""
    delayed: int = 0
    """Messages that had to wait because their senders send nonsense, or much before they log in."""
    failed_logins: int = 0
    commands: int = 0
    passed: int = 0
    """Commands that went on to the upstream."""
    failed: int = 0
    """Commands that failed in a way that is a defect of the gateway."""
    left_to_upstream: int = 0
    """Change streams that the upstream or its shards serve, because the engine does not know a stage or an option, or
    has not proved itself."""
    events: int = 0
    event_bytes: int = 0


class Gateway:
    """Serves change streams from a hub, and passes everything else to the upstream."""

    def __init__(
        self, hub: AnyHub, upstream: Upstream, streams: Streams, options: GatewayOptions, proof: Proof
    ) -> None:
        self.hub = hub
        self.proof = proof
        self.upstream = upstream
        self.streams = streams
        self.options = options
        self.validation = Validation(upstream)
        self.replies = SharedReplies()
        self.fail_points = FailPoints()
        self.frames = Frames(options.receive_bytes, self._drop_largest, self._drop_longest)
        self.privileges = PrivilegeChecks(options.seconds_between_checks)
        self.user_connections = Shares(options.connections_per_user, "connections")
        self.address_connections = Shares(options.connections_per_address, "connections")
        self.cursors = Cursors(Shares(options.streams_per_user, "streams"), access_log=options.access_log)
        self.logins = LoginAttempts(options.login_attempts)
        self.strangers = Strangers(options.strangers)
        self.counts = GatewayCounts()
        self.fairness = Fairness(self._count_delayed)
        rate = options.accepts_per_second
        self._accepts = BucketsByAddress(rate, rate * _ACCEPTS_AT_ONCE, rate * options.seconds_for_a_message)
        self._clients: dict[Connection, asyncio.Task[None]] = {}
        self.log = RateLimitedLog()
        """For what clients cause, as often as they like."""
        self.port = 0
        self._tls: ssl.SSLContext | None = None
        self._certificate: RenewedCertificate | None = None

    @classmethod
    @asynccontextmanager
    async def serve(
        cls,
        hub: AnyHub,
        client: MongoClient[Any],
        uri: str,
        options: GatewayOptions | None = None,
        proof: Proof | None = None,
    ) -> AsyncIterator[Gateway]:
        """Listen while the block runs; then end all cursors, so that clients resume elsewhere.

        `proof` says what the engine may serve: without one everything, as before an upstream that it is known to be
        right about.
        """
        options = options or GatewayOptions()
        upstream = Upstream(client, uri)
        is_open = not await upstream.requires_auth_at_start()
        if is_open and not options.allow_open and not is_loopback(options.address):
            raise SettingsError(
                f"the upstream lets everybody in, and so would the gateway at {options.address}",
                hint="Listen at 127.0.0.1, switch authentication on upstream, or give --allow-open.",
            )
        if options.present is Presentation.REPLICA_SET and isinstance(hub, ClusterHub):
            raise SettingsError(
                "a gateway before a sharded cluster cannot present itself as a replica set",
                hint='Leave gateway.present at "mongos".',
            )
        gateway = cls(hub, upstream, Streams(hub, client, options.stage_seconds), options, proof or Believed())
        tls = gateway._tls = _tls_context(options.certificate, options.client_ca)
        if tls is not None and options.certificate is not None:
            gateway._certificate = RenewedCertificate(tls, options.certificate, authorities=options.client_ca)
        try:
            server = await asyncio.get_running_loop().create_server(
                gateway._connection, options.address, options.port, backlog=_BACKLOG
            )
        except (OSError, UnicodeError) as error:
            message = f"cannot listen at {options.address}:{options.port}: {getattr(error, 'strerror', error)}"
            raise SettingsError(message, hint="Choose another address or port.") from None
        gateway.port = server.sockets[0].getsockname()[1]
        works = (gateway._sweep(), gateway._drop_late_clients(), upstream.auth.follow())
        sweepers = [asyncio.create_task(work) for work in works]
        try:
            yield gateway
        finally:
            for sweeper in sweepers:
                sweeper.cancel()
            server.close()
            await gateway._stop()
            await asyncio.to_thread(gateway.proof.close)
            gateway.frames.close()
            gateway.validation.close()
            upstream.close()

    def _connection(self) -> Connection:
        options = self.options
        is_stranger = self.upstream.auth.known is not False
        return Connection(
            self._accept,
            self.frames,
            self.fairness,
            largest=options.login_message_bytes if is_stranger else options.message_bytes,
            seconds=options.seconds_for_a_message,
            is_stranger=is_stranger,
            tls=self._tls,
        )

    def _count_delayed(self) -> None:
        self.counts.delayed += 1

    def _drop_largest(self) -> None:
        """Drop the client that has most bytes buffered: those who behave have next to none."""
        there = (each for each in self._clients if not each.is_dropped)
        largest = max(there, key=lambda connection: connection.buffered, default=None)
        if largest is not None:
            largest.drop(f"{largest.buffered} bytes of unread messages, while all clients together have too many")

    def _drop_longest(self, budget: ByteBudget) -> None:
        """Drop the client that has had bytes of a budget for longest, and long enough, while others wait for some."""
        holders = [(since, each) for each in self._clients if (since := each.holds_since(budget)) is not None]
        since, longest = min(holders, key=itemgetter(0), default=(math.inf, None))
        seconds = time.monotonic() - since
        if longest is not None and seconds > self.options.seconds_for_a_message / 3:
            longest.hang_up(
                f"bytes held for {seconds:.0f} s, by a slow message or its answer, while others wait for room"
            )

    def _accept(self, connection: Connection) -> None:
        """Begin a conversation with a client that has connected."""
        if len(self._clients) >= self.options.max_connections:
            self.refuse("client", connection.peer, "", "too many connections")
            connection.close()
            return
        try:
            self.address_connections.take([connection.address])
        except StreamRefused as error:
            self.refuse("client", connection.peer, "", error.message)
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._converse(connection))
        self._clients[connection] = task
        self.counts.connections += 1

    def refuse(self, what: str, peer: object, user: str, reason: str) -> None:
        """Count and log what a limit or a restriction forbids."""
        self.counts.refused += 1
        self.log.warning(f"{what}_refused", peer=peer, user=user, reason=reason)

    async def _converse(self, connection: Connection) -> None:
        conversation = Conversation(self, connection)
        try:
            await self._wait_to_be_accepted(connection)
            await connection.encrypt()
            await conversation.run()
        except BadFrame as error:
            self.counts.dropped += 1
            conversation.count_fault()
            self.log.warning("client_dropped", peer=connection.peer, reason=error.message)
        except ServerUnreachable as error:
            self.log.warning("upstream_lost", peer=connection.peer, reason=error.message)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the gateway stops
        except Exception as error:
            self.counts.dropped += 1
            self.log.warning("client_dropped", peer=connection.peer, reason=describe(error))
        finally:
            del self._clients[connection]
            self.address_connections.give([connection.address])
            self.counts.connections -= 1
            conversation.close()

    async def _wait_to_be_accepted(self, connection: Connection) -> None:
        """Let clients of an address that connects very often wait, and refuse them when that would take too long."""
        if not self.options.accepts_per_second:
            return
        accepts = self._accepts.of(connection.address)
        if accepts.spend(1.0, time.monotonic()) >= 0:
            return
        wait = accepts.seconds_until_paid()
        if wait > self.options.seconds_for_a_message / 2:
            self.refuse("client", connection.peer, "", "too many new connections")
            raise ConnectionResetError
        await asyncio.sleep(wait)

    async def _drop_late_clients(self) -> None:
        """Drop clients that take too long to send a message, and see whether the certificate was renewed."""
        while True:
            await asyncio.sleep(min(1.0, self.options.seconds_for_a_message / 4))
            if self._certificate is not None:
                self._certificate.poll()
            for number, connection in enumerate(tuple(self._clients)):
                now = time.monotonic()
                connection.drop_if_late(now)
                if self.options.idle_seconds:
                    connection.drop_if_idle(now, self.options.idle_seconds)
                if number % _CLIENTS_PER_STEP == 0:
                    await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """Close cursors that nobody asks for any more."""
        while True:
            await asyncio.sleep(min(10.0, self.options.cursor_timeout / 2))
            for cursor in self.cursors.idle_for(self.options.cursor_timeout):
                self.log.info("cursor_timed_out", cursor=cursor.id, namespace=cursor.namespace)
                self.cursors.remove(cursor)
                await self.streams.close(cursor.subscription)

    async def _stop(self) -> None:
        """Answer what waits with a resumable error, then hang up."""
        for cursor in self.cursors:
            await self.streams.close(cursor.subscription) if not cursor.in_use else None
        self.streams.stop()
        if self._clients:
            await asyncio.wait(self._clients.values(), timeout=0.5)
        for task in self._clients.values():
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients.values(), timeout=5)
        for cursor in self.cursors:
            self.cursors.remove(cursor)
        self.streams.end()


def _tls_context(certificate: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    """Make what clients see: TLS 1.2 or newer, and where authorities are given, only those whom they know."""
    if certificate is None:
        if client_ca is not None:
            raise SettingsError("client certificates need TLS", hint="Give gateway.certificate too.")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"{certificate} is not a certificate with its key: {error}", hint="Give a PEM file."
        ) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"{client_ca} has no authorities: {error}", hint="Give a PEM file.") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context
