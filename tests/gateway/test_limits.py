"""What one address or user may have of a gateway, how long it may be idle, and what the access log says of it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trustme
from pymongo.database import Database

from gateway.running_gateway import RunningGateway
from gateway.test_hostile_clients import is_dropped
from gateway.test_ownership import open_stream, read_on
from gateway.wire_client import WireClient
from tailrace.errors import SettingsError
from tailrace.stand import ReplicaSet
from waiting import wait_until

Document = dict[str, Any]
PING = {"ping": 1, "$db": "admin"}


def test_an_address_has_so_many_connections(start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet) -> None:
    gateway = start_gateway(mongodb.uri, address="0.0.0.0", allow_open=True, connections_per_address=2)
    with WireClient(gateway.port) as first, WireClient(gateway.port) as second:
        for client in (first, second):
            assert client.command(PING) == {"ok": 1}
        assert is_dropped(gateway.port, b"")
        with WireClient(gateway.port, source="127.0.0.2") as other:
            assert other.command(PING) == {"ok": 1}
    assert gateway.gateway.counts.refused == 1
    while gateway.gateway.counts.connections:
        continue
    with WireClient(gateway.port) as again:
        assert again.command(PING) == {"ok": 1}


def test_a_user_has_so_many_connections_and_streams(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    gateway = start_gateway(secured.uri, connections_per_user=2, streams_per_user=2)
    with ExitStack() as opened:
        ann = [opened.enter_context(WireClient(gateway.port)) for _ in range(3)]
        for client in ann[:2]:
            client.authenticate("ann", "secret")
        with pytest.raises(AssertionError, match="ann@admin has 2 connections already"):
            ann[2].authenticate("ann", "secret")
        with pytest.raises(ConnectionError):
            ann[2].command({"find": "c", "$db": "pub"})
        cursors = [open_stream(client) for client in ann[:2]]
        with pytest.raises(AssertionError, match="ann@admin has 2 streams already"):
            open_stream(ann[0])
        ben = opened.enter_context(WireClient(gateway.port))
        ben.authenticate("ben", "secret")
        open_stream(ben)
        ann[0].command({"killCursors": "c", "cursors": [cursors[0]], "$db": "pub"})
        open_stream(ann[0])
        assert gateway.gateway.counts.refused == 2
        ann[1].socket.close()
        while gateway.gateway.counts.connections > 2:
            continue
        late = opened.enter_context(WireClient(gateway.port))
        late.authenticate("ann", "secret")


def test_where_nobody_authenticates_an_address_has_so_many_streams(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet
) -> None:
    gateway = start_gateway(mongodb.uri, address="0.0.0.0", allow_open=True, streams_per_user=1)
    with WireClient(gateway.port) as one, WireClient(gateway.port, source="127.0.0.2") as other:
        open_stream(one)
        with pytest.raises(AssertionError, match=r"127\.0\.0\.1 has 1 streams already"):
            open_stream(one)
        open_stream(other)


def test_idle_clients_are_dropped_and_watchers_are_not_idle(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Database[Document]
) -> None:
    gateway = start_gateway(mongodb.uri, idle_seconds=0.5)
    with WireClient(gateway.port) as idle, WireClient(gateway.port) as watcher:
        idle.command(PING)
        cursor = open_stream(watcher)
        watcher.send({"getMore": cursor, "collection": "c", "maxTimeMS": 3_000, "$db": "pub"})
        with pytest.raises(ConnectionError):
            idle.reply()
        assert watcher.reply()["ok"] == 1


def test_the_access_log_says_who_watched_what_from_where_and_for_how_long(
    secured: ReplicaSet, start_gateway: Callable[..., RunningGateway]
) -> None:
    with structlog.testing.capture_logs() as lines:
        gateway = start_gateway(secured.uri)
        with WireClient(gateway.port) as client, secured.client() as root:
            client.authenticate("ann", "secret")
            cursor = open_stream(client)
            root.pub.c.insert_many([{}, {}, {}])
            while gateway.gateway.counts.events < 3:
                read_on(client, cursor)
            client.command({"killCursors": "c", "cursors": [cursor], "$db": "pub"})
    told = [line for line in lines if line["event"] in ("stream_opened", "stream_closed")]
    assert [line["event"] for line in told] == ["stream_opened", "stream_closed"]
    for line in told:
        assert (line["user"], line["address"], line["namespace"]) == ("ann@admin", "127.0.0.1", "pub.c")
    assert told[1]["events"] == 3
    assert told[1]["seconds"] > 0


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_is_of_today_and_clients_show_a_certificate_where_authorities_are_given(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, tmp_path: Path
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    server, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(server))
    authority.cert_pem.write_to_path(str(ca))
    with pytest.raises(SettingsError, match="need TLS"):
        start_gateway(mongodb.uri, client_ca=ca)
    with pytest.raises(SettingsError, match="no authorities"):
        start_gateway(mongodb.uri, certificate=server, client_ca=tmp_path / "none.pem")
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
    with pytest.raises(OSError, match=r"(?i)protocol|alert|reset|EOF"):
        WireClient(gateway.port, old)


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
