"""How verbs log in to a real MongoDB server with TLS by a private authority, by each mechanism."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from cryptography.x509 import load_pem_x509_certificate

from tailrace.cli.app import run
from tailrace.stand import ReplicaSet

ROLES = [{"role": "readAnyDatabase", "db": "admin"}, {"role": "read", "db": "local"}]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> object:
    with ReplicaSet.start("6.0.5", auth=True, tls=True, folder=tmp_path_factory.mktemp("guarded")) as server:
        server.primary.command({"createUser": "old", "pwd": "p:w", "roles": ROLES, "mechanisms": ["SCRAM-SHA-1"]})
        server.primary.command({"createUser": "new", "pwd": "p@w", "roles": ROLES, "mechanisms": ["SCRAM-SHA-256"]})
        with server.client() as client:
            client["$external"].command("createUser", subject_of(client_file(server)), roles=ROLES)
            client.shop.orders.insert_many([{"_id": 1}, {"_id": 2}])
        yield server


def client_file(server: ReplicaSet) -> Path:
    return next(server.nodes[0].log.parents[1].rglob("client.pem"))


def ca_file(server: ReplicaSet) -> Path:
    return client_file(server).with_name("ca.pem")


def subject_of(file: Path) -> str:
    pem = file.read_bytes()
    return load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :]).subject.rfc4514_string()


def scram(user: str, password: str, mechanism: str) -> Callable[[ReplicaSet], str]:
    def uri(server: ReplicaSet) -> str:
        who = f"{user}:{quote_plus(password)}@"
        options = f"tls=true&tlsCAFile={quote_plus(str(ca_file(server)))}&authMechanism={mechanism}"
        return f"mongodb://{who}{server.nodes[0].address}/?replicaSet={server.name}&authSource=admin&{options}"

    return uri


def x509(server: ReplicaSet) -> str:
    options = f"tls=true&tlsCAFile={quote_plus(str(ca_file(server)))}"
    options += f"&tlsCertificateKeyFile={quote_plus(str(client_file(server)))}"
    host = f"{server.nodes[0].address}/?replicaSet={server.name}"
    return f"mongodb://{host}&authMechanism=MONGODB-X509&authSource=$external&{options}"


MECHANISMS = {
    "SCRAM-SHA-1": scram("old", "p:w", "SCRAM-SHA-1"),
    "SCRAM-SHA-256": scram("new", "p@w", "SCRAM-SHA-256"),
    "MONGODB-X509": x509,
}


@pytest.mark.parametrize("source", ["change-stream", "oplog"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_producer_and_a_check_log_in(
    guarded: ReplicaSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], mechanism: str, source: str
) -> None:
    secret = tmp_path / "uri"
    secret.write_text(MECHANISMS[mechanism](guarded))
    file = tmp_path / "tailrace.toml"
    file.write_text(
        f'[mongodb]\nuri_file = "uri"\n[capture]\nnamespaces = ["shop.orders"]\nsource = "{source}"\n'
        f'sink = "file:{tmp_path}/out"\nposition_store = "file:{tmp_path}/positions"\n'
    )
    assert run(["--config", str(file), "produce", "--until-idle"]) == 0
    assert [json.loads(line)["value"]["documentKey"]["_id"] for line in (tmp_path / "out").open()] == [1, 2]
    assert run(["--config", str(file), "check", "--json"]) in (0, 1)
    printed = "".join(capsys.readouterr())
    assert "p%3Aw" not in printed
    assert "p%40w" not in printed


@pytest.mark.parametrize("wrong", ["another password", "another authority"])
def test_who_may_not_come_in_is_told_why(
    guarded: ReplicaSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    uri = MECHANISMS["SCRAM-SHA-256"](guarded)
    if wrong == "another password":
        uri = uri.replace("p%40w", "Hunter2")
    else:
        uri = uri.replace(f"tlsCAFile={quote_plus(str(ca_file(guarded)))}&", "")
    words = ["produce", "shop.orders", "--uri", uri, "--sink", "stdout:", "--store", f"file:{tmp_path}", "--until-idle"]
    assert run(words) in (64, 69)
    printed = capsys.readouterr().err
    assert ("Authentication failed" if wrong == "another password" else "certificate") in printed
    assert "Hunter2" not in printed
