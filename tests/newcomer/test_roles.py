"""The roles per verb, as the security page lists them: they are enough, and none of them can be left out."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.pages import read
from tailrace.cli.app import run
from tailrace.owned import GuardedProcess
from tailrace.stand import Kafka, ReplicaSet

ENDS = {
    "watch": ["--start-at", "0,1", "--count", "1"],
    "produce": ["--sink", "file:out.jsonl", "--until-idle"],
    "snapshot": ["--sink", "file:out.jsonl"],
    "check": [],
    "recover": ["--name", "produced"],
    "verify": ["--name", "nobody"],
}
"""What lets each verb end by itself; a stream without a position is compared at once."""
READS_BACK = ("recover", "verify")
"""The verbs that need what a producer has delivered to Kafka before."""


def rows() -> Iterator[Any]:
    """Give each row of the page: the words of its command, the settings beside it and its roles."""
    table = read("security.md").split("| command | roles |\n|---|---|\n")[1].split("\n\n")[0]
    for line in table.splitlines():
        command, roles = line.strip("| ").split(" | ")
        words = shlex.split(re.findall(r"`tailrace ([^`]+)`", command)[0])
        settings = dict(re.findall(r'`([\w.]+) = "([\w.-]+)"`', command))
        granted = [{"role": role, "db": database} for role, database in re.findall(r"`(\w+)` on `(\w+)`", roles)]
        marks = [pytest.mark.long] if words[0] in READS_BACK else []
        yield pytest.param(words, settings, granted, id=re.sub(r"[`|]", "", command), marks=marks)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """A replica set that asks who its clients are, with two databases."""
    with ReplicaSet.start(nodes=1, auth=True, folder=tmp_path_factory.mktemp("guarded")) as started:
        with started.client() as client:
            client.shop.orders.insert_one({"_id": 1})
            client.other.things.insert_one({"_id": 1})
        yield started


_users = iter(range(1_000))


def uri_of_a_user(guarded: ReplicaSet, roles: list[dict[str, str]]) -> str:
    user = guarded.add_user(f"user{next(_users)}", "secret", roles)
    host = guarded.uri.partition("@")[2].partition("/")[0]
    return f"mongodb://{user.uri_part}{host}/?authSource=admin&replicaSet=rs0"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def apply(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in settings.items():
        monkeypatch.setenv(f"TAILRACE_{key.upper().replace('.', '__')}", value)


def run_with(words: list[str], settings: dict[str, str], uri: str, monkeypatch: pytest.MonkeyPatch) -> int:
    apply(settings, monkeypatch)
    return run([*words, *ENDS[words[0]], "--uri", uri])


def missing(role: dict[str, str]) -> str:
    """Give what an error has to say about a role: the database that could not be read, and what to grant."""
    if role["db"] == "local":
        return r"error\[oplog-unreadable\]|not authorized on local"
    if role["role"] == "readAnyDatabase":
        return r"error\[not-authorized\].*(not authorized on (admin|shop)\b|list all databases).*`readAnyDatabase`"
    return rf"error\[not-authorized\].* not authorized on {role['db']}\b.*`read`"


@pytest.mark.parametrize(("words", "settings", "roles"), [row for row in rows() if row.values[0] != ["serve"]])
def test_the_roles_of_the_page_are_enough_and_none_too_many(
    words: list[str],
    settings: dict[str, str],
    roles: list[dict[str, str]],
    guarded: ReplicaSet,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if words[0] in READS_BACK:
        kafka: Kafka = request.getfixturevalue("kafka")
        sink = {"capture.sink": f"kafka://{kafka.bootstrap_servers}", "capture.topic_prefix": f"roles{next(_users)}"}
        apply(settings | sink, monkeypatch)
        assert run(["produce", "--until-idle", "--name", "produced", "--uri", guarded.uri]) == 0
    assert run_with(words, settings, uri_of_a_user(guarded, roles), monkeypatch) == 0, capsys.readouterr().err
    if words[0] in ("produce", "snapshot"):
        assert '"op":"read"' in Path("out.jsonl").read_text()
    capsys.readouterr()
    for left_out in roles:
        others = [role for role in roles if role is not left_out] or [{"role": "read", "db": "elsewhere"}]
        named = ["--name", left_out["db"]] if words[0] in ("produce", "snapshot") else []
        assert run_with([*words, *named], settings, uri_of_a_user(guarded, others), monkeypatch) == 78, left_out
        complaint = capsys.readouterr().err
        assert re.search(missing(left_out), complaint), complaint


def test_the_gateway_serves_with_the_role_of_the_page(guarded: ReplicaSet, tmp_path: Path) -> None:
    ((_, _, roles),) = [row.values for row in rows() if row.values[0] == ["serve"]]
    command = [sys.executable, "-m", "tailrace.cli.app", "serve", "--port", "0", "--uri", uri_of_a_user(guarded, roles)]
    process = GuardedProcess(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("serving change streams of")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait(timeout=120)


def test_doctor_asks_for_no_more_than_produce_needs(
    guarded: ReplicaSet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It demanded a change stream of a capture from the oplog, and the oplog of one from change streams."""
    monkeypatch.setenv("TAILRACE_CAPTURE__NAMESPACES", "shop.orders")
    doctor = ["doctor", "--sink", "file:out.jsonl", "--uri"]
    whole = {"role": "readAnyDatabase", "db": "admin"}
    assert run([*doctor, uri_of_a_user(guarded, [whole])]) == 1
    shown = capsys.readouterr().out
    assert "not authorized on local" in shown
    assert "execute command" not in shown
    monkeypatch.setenv("TAILRACE_CAPTURE__SOURCE", "oplog")
    oplog = [{"role": "read", "db": "local"}, {"role": "read", "db": "shop"}]
    assert run([*doctor, uri_of_a_user(guarded, oplog)]) == 0
    assert run([*doctor, uri_of_a_user(guarded, oplog[:1])]) == 2, "it may not read what a snapshot has to read"
