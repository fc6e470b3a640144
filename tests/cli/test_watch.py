"""`tailrace watch` against a real server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bson import json_util
from bson.codec_options import CodecOptions
from bson.errors import InvalidBSON
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.errors import AutoReconnect, OperationFailure, ServerSelectionTimeoutError

import hostile_bson
from tailrace import raw
from tailrace.cli.app import run
from tailrace.owned import GuardedProcess
from tailrace.stand import ReplicaSet
from waiting import SECONDS

PROGRAM = [sys.executable, "-m", "tailrace.cli.app"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def orders(database: Any) -> Any:
    """Three inserts in `orders`, and one elsewhere."""
    database.orders.insert_many([{"_id": n, "total": Int64(n)} for n in range(3)])
    database.other.insert_one({"_id": 9})
    return database.orders


@pytest.fixture
def start(orders: Any) -> str:
    """The time of the first insert, as the command line takes it."""
    oplog = orders.database.client.local["oplog.rs"]
    first = oplog.find_one({"ns": orders.full_name, "op": "i"}, sort=[("$natural", 1)])["ts"]
    return f"{first.time},{first.inc}"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_one_json_document_a_line(mongodb: ReplicaSet, orders: Any, start: str, capsys: Any) -> None:
    assert run(["watch", orders.full_name, "--uri", mongodb.uri, "--start-at", start, "--count", "3"]) == 0
    events = lines(capsys)
    assert [event["fullDocument"] for event in events] == [{"_id": n, "total": n} for n in range(3)]
    assert {event["ns"]["coll"] for event in events} == {"orders"}


def test_a_policy_holds_for_what_is_printed(mongodb: ReplicaSet, orders: Any, start: str, capsys: Any) -> None:
    Path("tailrace.toml").write_text('[[policy.rules]]\nfields = ["total"]\naction = "drop"\n')
    assert run(["watch", orders.full_name, "--uri", mongodb.uri, "--start-at", start, "--count", "3"]) == 0
    assert [event["fullDocument"] for event in lines(capsys)] == [{"_id": n} for n in range(3)]


@pytest.mark.parametrize("scope", ["database", "--all"])
def test_wider_scopes(scope: str, mongodb: ReplicaSet, orders: Any, start: str, capsys: Any) -> None:
    target = orders.database.name if scope == "database" else scope
    pipeline = json.dumps([{"$match": {"ns.db": orders.database.name, "operationType": "insert"}}])
    arguments = ["--uri", mongodb.uri, "--start-at", start, "--count", "4", "--pipeline", pipeline]
    assert run(["watch", target, *arguments]) == 0
    assert [event["documentKey"]["_id"] for event in lines(capsys)] == [0, 1, 2, 9]


def test_canonical_json_keeps_types(mongodb: ReplicaSet, orders: Any, start: str, capsys: Any) -> None:
    arguments = ["--uri", mongodb.uri, "--start-at", start, "--count", "1", "--canonical"]
    assert run(["watch", orders.full_name, *arguments]) == 0
    assert lines(capsys)[0]["fullDocument"] == {"_id": {"$numberInt": "0"}, "total": {"$numberLong": "0"}}


@pytest.mark.parametrize("option", ["--resume-after", "--start-after"])
@pytest.mark.parametrize("written", ["file", "json", "data"])
def test_it_goes_on_after_a_saved_token(
    option: str, written: str, mongodb: ReplicaSet, orders: Any, start: str, capsys: Any
) -> None:
    common = ["watch", orders.full_name, "--uri", mongodb.uri, "--count", "1", "--save-token", "token.json"]
    assert run([*common, "--start-at", start]) == 0
    saved = Path("token.json").read_text()
    token = {"file": "token.json", "json": saved, "data": json_util.loads(saved)["_data"]}[written]
    assert run([*common, option, token]) == 0
    assert [event["documentKey"]["_id"] for event in lines(capsys)] == [0, 1]
    assert Path("token.json").read_text() != saved
    assert os.listdir() == ["token.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ([], 64, "--all"),
        (["a.b", "--all"], 64, "--all"),
        (["a.b", "--pipeline", "{"], 64, "--pipeline"),
        (["a.b", "--pipeline", "{}"], 64, "--pipeline is not a list of stages"),
        (["a.b", "--start-at", "soon"], 64, "soon"),
        (["a.b", "--resume-after", "{"], 78, "resume-token-invalid"),
        (["a.b", "--resume-after", "xyz"], 78, "error["),
        (["a.b", "--full-document", "surprise"], 78, "stream-refused"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(
    arguments: list[str], code: int, complaint: str, mongodb: ReplicaSet, capsys: Any
) -> None:
    assert run(["watch", *arguments, "--uri", mongodb.uri]) == code
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_an_unreachable_server_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "0.3")
    assert run(["watch", "a.b", "--uri", "mongodb://user:secret@127.0.0.1:9/"]) == 69
    printed = capsys.readouterr().err
    assert printed.startswith("error[server-unreachable]")
    assert printed.count("\n") == 1
    assert "secret" not in printed


def test_ctrl_c_ends_it_without_a_traceback(mongodb: ReplicaSet, orders: Any, start: str) -> None:
    command = [*PROGRAM, "watch", orders.full_name, "--uri", mongodb.uri, "--start-at", start]
    program = GuardedProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert json.loads(program.stdout.readline())["documentKey"] == {"_id": 0}
    program.send_signal(signal.SIGINT)
    _, complaints = program.communicate(timeout=SECONDS)
    assert program.returncode == 130
    assert complaints == ""


def test_on_a_terminal_it_is_pretty_and_coloured(mongodb: ReplicaSet, orders: Any, start: str) -> None:
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "watch", orders.full_name, "--uri", mongodb.uri, "--start-at", start, "--count", "1"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    program = GuardedProcess(command, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # how a pseudo-terminal says that nobody writes any more
        pass
    program.communicate(timeout=SECONDS)
    assert program.returncode == 0
    assert shown.count(b"\n") > 5
    assert b"\x1b[" in shown


def test_what_drivers_cannot_decode_is_printed(mongodb: ReplicaSet, database: Any, capsys: Any) -> None:
    """Servers store text that is not UTF-8, and more that drivers refuse: none of it ends the command."""
    hostile = database.get_collection("hostile", CodecOptions(document_class=RawBSONDocument))
    started = hostile.insert_one({"_id": "first"}) and database.client.admin.command("ping")["operationTime"]
    stored = 0
    for number, (_, element) in enumerate(hostile_bson.elements()):
        try:
            hostile.insert_one(
                RawBSONDocument(raw.document(raw.element(raw.INT32, b"_id", raw.int32(number)), element))
            )
            stored += 1
        except (OperationFailure, InvalidBSON, ServerSelectionTimeoutError, AutoReconnect):
            continue
    assert stored > 60
    at = f"{started.time},{started.inc}"
    arguments = ["watch", hostile.full_name, "--uri", mongodb.uri, "--start-at", at, "--count", str(stored)]
    for form in ([], ["--canonical"]):
        assert run([*arguments, *form]) == 0
        assert len(lines(capsys)) == stored
