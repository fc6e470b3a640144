"""What an attacker tries: commands with two meanings, and the gateway's own identity."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from bson import Binary, Int64
from cryptography import x509

from gateway.running_gateway import RunningGateway
from gateway.wire_client import WireClient, element
from tailrace.gateway.login import Login
from tailrace.stand import ReplicaSet

WATCH = [element("aggregate", 1), element("pipeline", [{"$changeStream": {}}]), element("cursor", {})]


def test_a_command_with_two_databases_gets_nobody_into_the_other_one(
    start_mongodb: Callable[..., ReplicaSet], start_gateway: Callable[..., RunningGateway]
) -> None:
    upstream = start_mongodb("6.0.5", auth=True)
    upstream.add_user("reader", "password", [{"role": "read", "db": "pub"}])
    gateway = start_gateway(upstream.uri)
    with WireClient(gateway.port) as thief, WireClient(upstream.primary.port) as direct:
        for client in (thief, direct):
            client.authenticate("reader", "password")
        for twice in (["secret", "pub"], ["pub", "secret"]):
            databases = [element("$db", name) for name in twice]
            refused = thief.fields(*WATCH, *databases)
            assert refused == direct.fields(*WATCH, *databases)
            assert refused["code"] == 40413
        assert thief.fields(*WATCH, element("$db", "secret"))["code"] == 13
        assert thief.fields(*WATCH, element("$db", "pub"))["ok"] == 1
    assert not [cursor for cursor in gateway.gateway.cursors if cursor.namespace.startswith("secret")]


LSID = element("lsid", {"id": Binary(b"0" * 16, 4)})
TWICE = {
    "aggregate": [*WATCH, element("aggregate", "other")],
    "pipeline": [*WATCH, element("pipeline", [])],
    "cursor": [*WATCH, element("cursor", {"batchSize": 1})],
    "lsid": [*WATCH, LSID, LSID],
    "collection": [element("getMore", Int64(5)), element("collection", "a"), element("collection", "b")],
    "cursors": [element("killCursors", "a"), element("cursors", []), element("cursors", [])],
    "endSessions": [element("endSessions", []), element("endSessions", [])],
    "any field of any command": [element("ping", 1), element("x", 1), element("x", 1)],
}


@pytest.mark.mongodb("4.2.6", "6.0.5")
@pytest.mark.parametrize("elements", TWICE.values(), ids=TWICE)
def test_a_field_that_stands_twice_is_refused_as_by_the_server(
    gateway: RunningGateway, mongodb: ReplicaSet, elements: list[bytes]
) -> None:
    with WireClient(gateway.port) as through, WireClient(mongodb.primary.port) as direct:
        refused = through.fields(*elements, element("$db", "a"))
        assert refused == direct.fields(*elements, element("$db", "a"))
        assert refused["code"] == 40413
        assert through.command({"ping": 1, "$db": "admin"}) == {"ok": 1}


@pytest.mark.mongodb("4.2.6", "6.0.5")
def test_a_command_has_one_database_that_is_a_string(gateway: RunningGateway, mongodb: ReplicaSet) -> None:
    with WireClient(gateway.port) as through, WireClient(mongodb.primary.port) as direct:
        for elements in (WATCH, [], [*WATCH, element("$db", 1)], [*WATCH, element("$db", None)]):
            assert through.fields(*elements) == direct.fields(*elements)
        legacy: dict[str, Any] = {"isMaster": 1, "$db": "pub"}
        assert through.query("secret.$cmd", legacy) == direct.query("secret.$cmd", legacy)


def test_nobody_becomes_the_user_of_the_gateways_own_certificate(
    start_mongodb: Callable[..., ReplicaSet],
    start_gateway: Callable[..., RunningGateway],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mechanism is refused by name; and if it were not, the server would see no certificate."""
    upstream = start_mongodb("6.0.5", auth=True, tls=True)
    folder = next(tmp_path.rglob("client.pem")).parent
    subject = x509.load_pem_x509_certificate(_certificate(folder / "client.pem")).subject.rfc4514_string()
    with upstream.client() as root:
        root["$external"].command("createUser", subject, roles=[{"role": "root", "db": "admin"}])
    host = f"127.0.0.1:{upstream.primary.port}"
    files = (
        f"tlsCAFile={quote_plus(str(folder / 'ca.pem'))}&tlsCertificateKeyFile={quote_plus(str(folder / 'client.pem'))}"
    )
    own = f"mongodb://{host}/?replicaSet=rs0&tls=true&{files}&authMechanism=MONGODB-X509&authSource=$external"
    gateway = start_gateway(own, certificate=folder / "server.pem")
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    asked = {"authenticate": 1, "mechanism": "MONGODB-X509", "$db": "$external"}
    with WireClient(gateway.port, context) as nobody:
        refused = nobody.command(asked)
        assert (refused["code"], refused["codeName"]) == (334, "MechanismUnavailable")
        assert "MONGODB-X509" in refused["errmsg"]
        speculative = {"authenticate": 1, "mechanism": "MONGODB-X509", "db": "$external"}
        greeting = {"hello": 1, "speculativeAuthenticate": speculative, "$db": "admin"}
        assert "speculativeAuthenticate" not in nobody.command(greeting)
        status = nobody.command({"connectionStatus": 1, "$db": "admin"})
        assert status["authInfo"]["authenticatedUsers"] == []
        assert nobody.fields(*WATCH, element("$db", "secret"))["code"] == 13

    monkeypatch.setattr(Login, "authenticate", lambda login, command: login._conversation.pass_on(command))
    with WireClient(gateway.port, context) as nobody:
        refused = nobody.command(asked)
        assert (refused["ok"], refused["code"]) == (0, 18), "the server has been asked, and has seen nobody"


def _certificate(file: Path) -> bytes:
    return b"-----BEGIN CERTIFICATE" + file.read_bytes().split(b"-----BEGIN CERTIFICATE")[1]
