"""The classic first mistakes with MongoDB: each verb says at connection what is wrong, and what to do about it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError

from tailrace.cli.app import run
from tailrace.deployment import missing_namespaces
from tailrace.stand import ReplicaSet
from tailrace.stand.mongod_binary import MongodBinary
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess

VERBS = {
    "watch": ["watch", "shop.orders", "--count", "1"],
    "produce": ["produce", "shop.orders", "--sink", "stdout:"],
    "produce --source oplog": ["produce", "shop.orders", "--sink", "stdout:", "--source", "oplog"],
    "snapshot": ["snapshot", "shop.orders", "--sink", "stdout:"],
    "recover": ["recover", "--sink", "stdout:"],
    "recover --dry-run": ["recover", "--sink", "stdout:", "--dry-run"],
    "verify": ["verify"],
    "serve": ["serve", "--port", "0"],
    "check": ["check"],
}
DEFINITION = Path(__file__).parents[2] / "examples" / "fraud_signals" / "features.toml"
JOBS = {
    "features run": ["features", "run", str(DEFINITION), "--redis", "redis://127.0.0.1:1"],
    "warehouse run": ["warehouse", "run", "shop.orders"],
}
"""Spark jobs that read MongoDB: they ask it before they start a JVM."""


@pytest.fixture(scope="module")
def start_mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Start a mongod as a newcomer does; gives its URI."""
    binary = MongodBinary.of_version("6.0.5")
    started: list[ServerProcess] = []
    ports = []

    def start(*flags: str) -> str:
        data = tmp_path_factory.mktemp("mongod")
        port = reserve_port()
        command = [*binary.command, "--bind_ip", "127.0.0.1", "--port", str(port.number), "--nounixsocket", *flags]
        process = ServerProcess(
            "mongod", [*command, "--dbpath", str(data)], log=data / "log", environment=binary.environment
        )
        uri = f"mongodb://127.0.0.1:{port.number}/"
        started.append(process)
        ports.append(port)
        process.start(lambda: answers(f"{uri}?directConnection=true"))
        return uri

    yield start
    for process in started:
        process.stop()
    for port in ports:
        port.release()


def answers(uri: str) -> bool:
    with MongoClient[Any](uri, serverSelectionTimeoutMS=500) as client:
        try:
            client.admin.command("ping")
        except PyMongoError:
            return False
    return True


@pytest.fixture(scope="module")
def standalone(start_mongod: Callable[..., str]) -> str:
    return start_mongod()


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("verb", [*VERBS, *JOBS])
def test_a_standalone_mongod(verb: str, standalone: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*(VERBS | JOBS)[verb], "--uri", standalone]) == 78
    complaint = capsys.readouterr().err
    assert complaint.startswith("error[not-a-replica-set]: the mongod at mongodb://127.0.0.1:")
    assert "--replSet rs0" in complaint
    assert "rs.initiate()" in complaint


def test_a_replica_set_that_nobody_initiated(
    start_mongod: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"{start_mongod('--replSet', 'rs0')}?directConnection=true"
    for verb in ("watch", "produce", "serve", "check"):
        assert run([*VERBS[verb], "--uri", uri]) == 69  # a member that has only started says the same
        complaint = capsys.readouterr().err
        assert complaint.startswith("error[replica-set-not-initiated]: the replica set at"), verb
        assert "rs.initiate()" in complaint


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """A replica set of two that asks who its clients are."""
    with ReplicaSet.start(nodes=2, auth=True, folder=tmp_path_factory.mktemp("guarded")) as started:
        yield started


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "verify"])
def test_a_user_without_the_privilege(verb: str, guarded: ReplicaSet, capsys: pytest.CaptureFixture[str]) -> None:
    user = guarded.add_user(f"weak{list(VERBS).index(verb)}", "secret", [{"role": "read", "db": "elsewhere"}])
    host = guarded.uri.partition("@")[2].partition("/")[0]
    uri = f"mongodb://{user.uri_part}{host}/?authSource=admin&replicaSet=rs0"
    assert run([*VERBS[verb], "--uri", uri]) == 78
    complaint = capsys.readouterr().err
    if verb in ("produce --source oplog", "serve", "check"):
        assert "error[oplog-unreadable]" in complaint
        assert "`read` on the database `local`" in complaint
    else:
        assert "error[not-authorized]" in complaint
        assert "Grant" in complaint


def test_a_wrong_password(guarded: ReplicaSet, capsys: pytest.CaptureFixture[str]) -> None:
    host = guarded.uri.partition("@")[2].partition("/")[0]
    for verb in ("watch", "produce", "serve", "check"):
        assert run([*VERBS[verb], "--uri", f"mongodb://root:wrong@{host}/?authSource=admin&replicaSet=rs0"]) == 64, verb
        complaint = capsys.readouterr().err
        assert complaint.startswith("error[settings-invalid]"), verb
        assert "authSource" in complaint


def test_a_direct_connection_to_a_secondary(guarded: ReplicaSet, capsys: pytest.CaptureFixture[str]) -> None:
    """The oplog is read from the primary; `serve` and `--source oplog` need it."""
    uri = guarded.secondaries[0].uri
    for verb in ("serve", "produce --source oplog"):
        assert run([*VERBS[verb], "--uri", uri]) == 78
        complaint = capsys.readouterr().err
        assert complaint.startswith("error[deployment-unsuitable]"), verb
        assert "replicaSet=rs0" in complaint


def test_a_set_whose_primary_nobody_finds(
    guarded: ReplicaSet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "1")
    uri = guarded.uri.replace("replicaSet=rs0", "replicaSet=another")
    for verb in ("watch", "produce", "serve"):
        assert run([*VERBS[verb], "--uri", uri]) == 69
        assert "error[server-unreachable]" in capsys.readouterr().err


def test_a_misspelt_namespace_is_said(
    mongodb: ReplicaSet, database: Database[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing came, for ever, and no line said that there is no such collection."""
    database.orders.insert_one({})
    uri, there, absent = ["--uri", mongodb.uri], f"{database.name}.orders", f"{database.name}.ordres"
    produce = ["produce", there, absent, "nowhere", f"/{database.name}[.].*/", "--until-idle", *uri]
    assert run([*produce, "--sink", "file:out.jsonl"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "namespaces_missing" in line]
    assert f'"namespaces": ["{absent}", "nowhere"]' in line
    looked = set_after(monkeypatch, "tailrace.cli.watch.say_missing")

    def write() -> None:
        assert looked.wait(60)
        while not ended.wait(0.1):
            database.ordres.insert_one({})

    ended = threading.Event()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert run(["watch", absent, "--count", "1", *uri]) == 0
    assert f"{absent} does not exist yet" in capsys.readouterr().err
    assert run(["watch", absent, "--count", "1", *uri]) == 0
    assert "not exist" not in capsys.readouterr().err
    ended.set()
    writer.join(timeout=60)
    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", lambda *_, **__: pytest.fail("it starts Spark"))
    with pytest.raises(pytest.fail.Exception):
        run(["warehouse", "run", f"{database.name}.odrers", *uri])
    assert f"{database.name}.odrers does not exist yet" in capsys.readouterr().err


def set_after(monkeypatch: pytest.MonkeyPatch, name: str) -> threading.Event:
    """Give an event that is set once the function of this name was called for the first time."""
    called = threading.Event()
    module, _, function = name.rpartition(".")
    original = getattr(import_module(module), function)

    def call(*arguments: Any) -> Any:
        answer = original(*arguments)
        called.set()
        return answer

    monkeypatch.setattr(import_module(module), function, call)
    return called


def test_a_user_who_may_list_nothing_is_told_of_no_missing_namespace(guarded: ReplicaSet) -> None:
    with guarded.client() as client:
        client.shop.orders.insert_one({})
        role = {"resource": {"db": "shop", "collection": "orders"}, "actions": ["find", "changeStream"]}
        client.admin.command("createRole", "narrow", privileges=[role], roles=[])
    user = guarded.add_user("narrow", "secret", [{"role": "narrow", "db": "admin"}])
    host = guarded.uri.partition("@")[2].partition("/")[0]
    with MongoClient[Any](f"mongodb://{user.uri_part}{host}/?authSource=admin&replicaSet=rs0") as client:
        assert missing_namespaces(client, ["shop.orders", "shop", "/shop[.].*/"]) == []
