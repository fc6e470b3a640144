"""TLS: of today, with a client's certificate where that is asked, and nobody waits for who does not get on with it."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trustme
from bson import Int64
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from gateway.test_hostile_clients import is_dropped
from gateway.wire_client import WireClient
from tailrace.errors import SettingsError
from tailrace.stand import ReplicaSet
from waiting import wait_until

Document = dict[str, Any]
PING = {"ping": 1, "$db": "admin"}


def _context_for_old_clients(purpose: ssl.Purpose) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if purpose is ssl.Purpose.CLIENT_AUTH else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1
    made.set_ciphers("ALL:@SECLEVEL=0")
    return made


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_is_of_today_and_clients_show_a_certificate_where_authorities_are_given(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old client is refused for its version, also where Python's contexts begin at TLS 1.0, as Debian's do on a
    machine whose OpenSSL is set up for old clients.
    """
    authority, stranger = trustme.CA(), trustme.CA()
    server, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(server))
    authority.cert_pem.write_to_path(str(ca))
    with pytest.raises(SettingsError, match="need TLS"):
        start_gateway(mongodb.uri, client_ca=ca)
    with pytest.raises(SettingsError, match="no authorities"):
        start_gateway(mongodb.uri, certificate=server, client_ca=tmp_path / "none.pem")
    with monkeypatch.context() as patched:
        patched.setattr(ssl, "create_default_context", _context_for_old_clients)
        gateway = start_gateway(mongodb.uri, certificate=server, client_ca=ca)

    def context(issuer: trustme.CA | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=ca)
        if issuer is not None:
            issuer.issue_cert("client@example.org").configure_cert(made)
        return made

    with WireClient(gateway.port, context(authority)) as client:
        assert client.command(PING) == {"ok": 1}
        assert str(client.socket.version()) in ("TLSv1.2", "TLSv1.3")  # type: ignore[attr-defined]
    for refused in (context(None), context(stranger)):
        with pytest.raises(OSError), WireClient(gateway.port, refused) as client:  # noqa: PT011
            client.command(PING)
    old = context(authority)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(OSError, match=r"EOF|reset"):
            WireClient(gateway.port, old)
        # The server may report only now that it has refused the client before.
        wait_until(lambda: any("UNSUPPORTED_PROTOCOL" in line["reason"] for line in logs), "a line in the log")


def test_a_certificate_is_renewed_without_a_restart(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, tmp_path: Path
) -> None:
    """Who is connected stays; a file that is no certificate changes nothing."""
    file, authorities = tmp_path / "server.pem", [trustme.CA(), trustme.CA()]

    def write(authority: trustme.CA) -> None:
        new = tmp_path / "new.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(new))
        new.replace(file)

    def trusting(authority: trustme.CA) -> ssl.SSLContext:
        made = ssl.create_default_context()
        authority.configure_trust(made)
        return made

    def is_known_to(authority: trustme.CA) -> bool:
        try:
            with WireClient(gateway.port, trusting(authority)) as client:
                return client.command(PING) == {"ok": 1}
        except ssl.SSLError:
            return False

    write(authorities[0])
    gateway = start_gateway(mongodb.uri, certificate=file)
    with WireClient(gateway.port, trusting(authorities[0])) as early:
        assert early.command(PING) == {"ok": 1}
        with structlog.testing.capture_logs() as logs:
            file.write_text("-----BEGIN CERTIFICATE-----")
            wait_until(lambda: any(each["event"] == "certificate_unusable" for each in logs), "the bad file is noticed")
        assert is_known_to(authorities[0])
        write(authorities[1])
        wait_until(lambda: is_known_to(authorities[1]), "the new certificate")
        assert not is_known_to(authorities[0])
        assert early.command(PING) == {"ok": 1}


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate with its key, and what clients need to believe it."""
    authority, file = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return file, trusting


def _client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


def test_clients_that_stop_within_a_handshake_or_a_message_hold_up_nobody_and_are_dropped(
    mongodb: ReplicaSet,
    start_gateway: Callable[..., RunningGateway],
    certified: tuple[Path, ssl.SSLContext],
    database: Database[Document],
) -> None:
    file, trusting = certified
    gateway = start_gateway(mongodb.uri, certificate=file, seconds_for_a_message=3.0)
    hello, counts = _client_hello(trusting), gateway.gateway.counts
    database.create_collection("c")
    with ExitStack() as opened:
        watcher = opened.enter_context(WireClient(gateway.port, trusting))
        command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": database.name}
        cursor = Int64(watcher.command(command)["cursor"]["id"])
        more = {"getMore": cursor, "collection": "c", "maxTimeMS": 100, "$db": database.name}
        stalled: list[socket.socket] = []
        for begun in (b"", hello[:3], hello[:100], hello):
            for _ in range(10):
                peer = socket.create_connection(("127.0.0.1", gateway.port), timeout=120)
                stalled.append(opened.enter_context(peer))
                peer.sendall(begun)
        for begun in (b"", struct.pack("<iiii", 100, 1, 0, 2013)):
            encrypted = opened.enter_context(WireClient(gateway.port, trusting)).socket
            stalled.append(encrypted)
            encrypted.sendall(begun)
        for number in range(5):
            database.c.insert_one({"_id": number})
            while not (found := watcher.command(more)["cursor"]["nextBatch"]):
                continue
            assert [event["documentKey"]["_id"] for event in found] == [number]
        for peer in stalled:
            with pytest.raises((ConnectionError, ssl.SSLEOFError, EOFError)):
                _read_to_the_end(peer)
        assert counts.dropped == len(stalled)
        wait_until(lambda: counts.connections == 1)


def _read_to_the_end(peer: socket.socket) -> None:
    while peer.recv(4096):
        continue
    raise EOFError


def test_clients_count_before_their_handshake(
    mongodb: ReplicaSet, start_gateway: Callable[..., RunningGateway], certified: tuple[Path, ssl.SSLContext]
) -> None:
    gateway = start_gateway(mongodb.uri, certificate=certified[0], connections_per_address=2)
    with WireClient(gateway.port) as first, WireClient(gateway.port):
        assert is_dropped(gateway.port, b"")
        assert gateway.gateway.counts.refused == 1
        first.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises((ConnectionError, EOFError)):
            _read_to_the_end(first.socket)
        wait_until(lambda: gateway.gateway.counts.connections == 1)
        with WireClient(gateway.port, certified[1]) as client:
            assert client.command(PING) == {"ok": 1}
    assert gateway.gateway.counts.dropped == 1


def test_a_client_that_has_to_wait_before_its_handshake_is_served(
    mongodb: ReplicaSet, start_gateway: Callable[..., RunningGateway], certified: tuple[Path, ssl.SSLContext]
) -> None:
    gateway = start_gateway(mongodb.uri, certificate=certified[0], accepts_per_second=0.5)
    for _ in range(6):
        with WireClient(gateway.port, certified[1]) as client:
            assert client.command(PING) == {"ok": 1}
    assert gateway.gateway.counts.dropped == 0
