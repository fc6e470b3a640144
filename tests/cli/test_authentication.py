"""How verbs log in to a real MongoDB server with TLS by a private authority, by each mechanism."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
import redis
from cryptography.x509 import load_pem_x509_certificate

from dashboard_site import free_port
from tailrace.cli.app import run
from tailrace.errors import ServerUnreachable
from tailrace.http_client import fetch
from tailrace.owned import GuardedProcess
from tailrace.stand import Redis, ReplicaSet
from waiting import wait_until

MARKED = "a-marked-secret"
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


@contextmanager
def ended(process: GuardedProcess[Any]) -> Iterator[GuardedProcess[Any]]:
    """End a process with the block; a clean end is code 0."""
    with process:
        try:
            yield process
        finally:
            process.terminate()
    assert process.returncode == 0


def test_a_secret_is_renewed_without_a_restart(guarded: ReplicaSet, redis_server: Redis, tmp_path: Path) -> None:
    """New users of MongoDB and of the position store, whose old ones are then gone, while the producer runs on."""
    rules = "~{tailrace}:* +evalsha +get +hmget +hset +lpush +lrange +sadd +script|load +set +smembers +time"
    with redis.Redis.from_url(redis_server.url) as stores, guarded.client() as client:
        collection = client[f"renewed{os.getpid()}"].orders

        def grant(user: str) -> None:
            """Make a user on both servers, and let the files name it."""
            guarded.primary.command(
                {"createUser": user, "pwd": MARKED, "roles": ROLES, "mechanisms": ["SCRAM-SHA-256"]}
            )
            stores.execute_command("ACL", "SETUSER", user, "on", f">{MARKED}", *rules.split())
            for name, text in (
                ("uri", scram(user, MARKED, "SCRAM-SHA-256")(guarded)),
                ("store", redis_server.url.replace("redis://", f"redis://{user}:{MARKED}@")),
            ):
                (tmp_path / "new").write_text(f"{text}\n")
                (tmp_path / "new").replace(tmp_path / name)

        grant("first")
        file, delivered, port = tmp_path / "tailrace.toml", tmp_path / "out", free_port()
        endpoint = f"http://127.0.0.1:{port}"
        file.write_text(
            f'[mongodb]\nuri_file = "uri"\n[capture]\nname = "renewed"\nnamespaces = ["{collection.full_name}"]\n'
            f'sink = "file:{delivered}"\nposition_store_file = "store"\nstart = "now"\n'
            f'[monitor]\nmetrics_port = {port}\ncontrol_token = "{MARKED}-token"\n'
        )
        command = [sys.executable, "-m", "tailrace.cli.app", "--config", str(file), "produce"]
        with (tmp_path / "log").open("w") as log, ended(GuardedProcess(command, stderr=log)) as process:

            def answered(field: str) -> Any:
                """A field of the producer's state; None while its endpoint is opened anew."""
                try:
                    return fetch(endpoint, "/state").json().get(field)
                except ServerUnreachable:
                    return None

            def is_delivered(number: int) -> bool:
                collection.insert_one({"_id": uuid.uuid4().hex, "n": number})
                return delivered.exists() and f'"n":{number}' in delivered.read_text().replace(" ", "")

            wait_until(lambda: is_delivered(1))
            grant("second")
            wait_until(lambda: "secrets_renewed" in (tmp_path / "log").read_text())
            wait_until(lambda: (tmp_path / "log").read_text().count('"starting"') == 2)
            guarded.primary.command({"dropUser": "first"})
            stores.execute_command("ACL", "DELUSER", "first")
            wait_until(lambda: is_delivered(2))
            assert process.poll() is None
            assert fetch(endpoint, "/pause", post={}, bearer=f"{MARKED}-token").status == 202
            grant("third")
            wait_until(lambda: (tmp_path / "log").read_text().count('"starting"') == 3)
            wait_until(lambda: answered("state") == "paused", "the pause is kept")
            assert fetch(endpoint, "/resume", post={}, bearer=f"{MARKED}-token").status == 202
            (tmp_path / "uri").write_text("")  # as it is for a moment, while somebody writes it
            wait_until(lambda: is_delivered(3))
            assert MARKED not in (tmp_path / "log").read_text()
