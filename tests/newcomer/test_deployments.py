"""The classic first mistakes with MongoDB: each verb says at connection what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tailrace.cli.app import run
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
    assert run([*(VERBS | JOBS)[verb], "--uri", standalone]) == 70
    complaint = capsys.readouterr().err
    assert complaint.startswith("error[not-a-replica-set]: the mongod at mongodb://127.0.0.1:")
    assert "--replSet rs0" in complaint
    assert "rs.initiate()" in complaint


def test_a_replica_set_that_nobody_initiated(
    start_mongod: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"{start_mongod('--replSet', 'rs0')}?directConnection=true"
    for verb in ("watch", "produce", "serve", "check"):
        assert run([*VERBS[verb], "--uri", uri]) == 70
        complaint = capsys.readouterr().err
        assert complaint.startswith("error[not-a-replica-set]: the replica set at"), verb
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
    assert run([*VERBS[verb], "--uri", uri]) == 70
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
        assert run([*VERBS[verb], "--uri", uri]) == 70
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
