"""Secrets and certificates that are replaced while a verb runs: it goes on with the new ones, in the same process."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
import redis
from pymongo import MongoClient

from dashboard_site import free_port
from mongodb_logins import Logins, ca_file, client_file, guarded_server, subject_of
from tailrace.errors import ServerUnreachable
from tailrace.http_client import fetch
from tailrace.owned import GuardedProcess
from tailrace.stand import Redis, ReplicaSet
from waiting import wait_until

MARKED = "a-marked-secret"
ROLES = [{"role": "readAnyDatabase", "db": "admin"}, {"role": "read", "db": "local"}]


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with guarded_server(tmp_path_factory.mktemp("guarded")) as made:
        yield made


@pytest.fixture
def guarded(logins: Logins) -> ReplicaSet:
    return logins.server


def scram(server: ReplicaSet, user: str, password: str) -> str:
    who = f"{user}:{quote_plus(password)}@"
    options = f"tls=true&tlsCAFile={quote_plus(str(ca_file(server)))}&authMechanism=SCRAM-SHA-256"
    return f"mongodb://{who}{server.nodes[0].address}/?replicaSet={server.name}&authSource=admin&{options}"


def replace(file: Path, text: str) -> None:
    """Put another file in the place of one, as those who care do."""
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


def grant(guarded: ReplicaSet, user: str, file: Path, password: str = MARKED) -> None:
    """Make a user, and let the file name it."""
    guarded.primary.command({"createUser": user, "pwd": password, "roles": ROLES, "mechanisms": ["SCRAM-SHA-256"]})
    replace(file, f"{scram(guarded, user, password)}\n")


def command(file: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "tailrace.cli.app", "--config", str(file), *words]


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

        def both(user: str) -> None:
            """Make a user on both servers, and let the files name it."""
            stores.execute_command("ACL", "SETUSER", user, "on", f">{MARKED}", *rules.split())
            grant(guarded, user, tmp_path / "uri")
            replace(tmp_path / "store", redis_server.url.replace("redis://", f"redis://{user}:{MARKED}@"))

        both("first")
        file, delivered, port = tmp_path / "tailrace.toml", tmp_path / "out", free_port()
        endpoint = f"http://127.0.0.1:{port}"
        file.write_text(
            f'[mongodb]\nuri_file = "uri"\n[capture]\nname = "renewed"\nnamespaces = ["{collection.full_name}"]\n'
            f'sink = "file:{delivered}"\nposition_store_file = "store"\nstart = "now"\n'
            f'[monitor]\nmetrics_port = {port}\ncontrol_token = "{MARKED}-token"\n'
        )
        with (
            (tmp_path / "log").open("w") as log,
            ended(GuardedProcess(command(file, "produce"), stderr=log)) as process,
        ):

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
            both("second")
            wait_until(lambda: "secrets_renewed" in (tmp_path / "log").read_text())
            wait_until(lambda: (tmp_path / "log").read_text().count('"starting"') == 2)
            guarded.primary.command({"dropUser": "first"})
            stores.execute_command("ACL", "DELUSER", "first")
            wait_until(lambda: is_delivered(2))
            assert process.poll() is None
            assert fetch(endpoint, "/pause", post={}, bearer=f"{MARKED}-token").status == 202
            both("third")
            wait_until(lambda: (tmp_path / "log").read_text().count('"starting"') == 3)
            wait_until(lambda: answered("state") == "paused", "the pause is kept")
            assert fetch(endpoint, "/resume", post={}, bearer=f"{MARKED}-token").status == 202
            (tmp_path / "uri").write_text("")  # as it is for a moment, while somebody writes it
            wait_until(lambda: is_delivered(3))
            assert MARKED not in (tmp_path / "log").read_text()


def test_a_client_certificate_is_renewed_without_a_restart(logins: Logins, tmp_path: Path) -> None:
    """The certificate of a producer that logs in by it; the user of the old one is gone then. Half a file waits."""
    guarded, own = logins.server, tmp_path / "client.pem"
    shutil.copy(client_file(guarded), own)
    uri = logins.uris["MONGODB-X509"].replace(quote_plus(str(client_file(guarded))), quote_plus(str(own)))
    other = client_file(guarded).with_name("other.pem")
    log, delivered, file = tmp_path / "log", tmp_path / "out", tmp_path / "tailrace.toml"
    with guarded.client() as client:
        client["$external"].command("createUser", subject_of(other), roles=ROLES)
        orders = client[f"certified{os.getpid()}"].orders
        file.write_text(
            f'[mongodb]\nuri = "{uri}"\n[capture]\nname = "certified"\nnamespaces = ["{orders.full_name}"]\n'
            f'sink = "file:{delivered}"\nposition_store = "file:{tmp_path}/positions"\nstart = "now"\n'
        )

        def is_delivered(number: int) -> bool:
            orders.insert_one({"n": number})
            return delivered.exists() and f'"n":{number}' in delivered.read_text().replace(" ", "")

        with log.open("w") as errors, ended(GuardedProcess(command(file, "produce"), stderr=errors)) as process:
            wait_until(lambda: is_delivered(1))
            own.write_bytes(other.read_bytes()[:400])
            wait_until(lambda: "certificate_unusable" in log.read_text())
            replace(own, other.read_text())
            wait_until(lambda: "secrets_renewed" in log.read_text())
            wait_until(lambda: log.read_text().count('"starting"') == 2)
            client["$external"].command("dropUser", subject_of(client_file(guarded)))
            try:
                wait_until(lambda: is_delivered(2))
            finally:
                client["$external"].command("createUser", subject_of(client_file(guarded)), roles=ROLES)
            assert process.poll() is None


def test_a_gateway_goes_on_with_a_new_secret_and_so_do_its_watchers(guarded: ReplicaSet, tmp_path: Path) -> None:
    grant(guarded, "gateway-first", tmp_path / "uri")
    guarded.add_user("ann", "secret", [{"role": "read", "db": "shop"}])
    log, file, port = tmp_path / "log", tmp_path / "tailrace.toml", free_port()
    file.write_text(f'[mongodb]\nuri_file = "uri"\n[gateway]\nport = {port}\n')
    through = f"mongodb://ann:secret@127.0.0.1:{port}/"
    with log.open("w") as errors, ended(GuardedProcess(command(file, "serve"), stderr=errors)) as process:
        wait_until(lambda: '"starting"' in log.read_text())
        watcher: MongoClient[Any] = MongoClient(through, serverSelectionTimeoutMS=60_000)
        with guarded.client() as root, watcher, watcher.shop.orders.watch(max_await_time_ms=500) as stream:

            def is_seen(number: int) -> bool:
                root.shop.orders.insert_one({"n": number})
                event = stream.try_next()
                while event is not None and event["fullDocument"]["n"] != number:
                    event = stream.try_next()
                return event is not None

            wait_until(lambda: is_seen(1))
            grant(guarded, "gateway-second", tmp_path / "uri")
            wait_until(lambda: log.read_text().count('"starting"') == 2)
            guarded.primary.command({"dropUser": "gateway-first"})
            wait_until(lambda: is_seen(2))
        assert process.poll() is None
    assert MARKED not in log.read_text()


def test_a_dashboard_goes_on_with_a_new_secret(guarded: ReplicaSet, tmp_path: Path) -> None:
    grant(guarded, "page-first", tmp_path / "uri")
    log, file, port = tmp_path / "log", tmp_path / "tailrace.toml", free_port()
    file.write_text(
        f'[mongodb]\nuri_file = "uri"\n[dashboard]\nport = {port}\n'
        f'[capture]\nposition_store = "file:{tmp_path}/positions"\n'
    )

    def has_read(since: float) -> bool:
        """Whether the oplog was read after a moment."""
        try:
            sources = fetch(f"http://127.0.0.1:{port}", "/api/sources").json()
        except ServerUnreachable:
            return False
        return any(
            each["name"] == "mongodb" and each["condition"]["colour"] == "green" and each["at"] > since
            for each in sources
        )

    with log.open("w") as errors, ended(GuardedProcess(command(file, "dashboard"), stderr=errors)) as process:
        wait_until(lambda: has_read(0))
        grant(guarded, "page-second", tmp_path / "uri")
        wait_until(lambda: "secrets_renewed" in log.read_text())
        guarded.primary.command({"dropUser": "page-first"})
        dropped = time.time()
        wait_until(lambda: has_read(dropped))
        assert process.poll() is None
