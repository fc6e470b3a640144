from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tailrace import raw
from tailrace.capture.positions import open_store
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.cli.app import run
from tailrace.monitor import serve_endpoint
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.stand import Kafka, ReplicaSet
from waiting import SECONDS


@pytest.fixture
def flags(mongodb: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path) -> list[str]:
    """Where everything is, for verbs that write to a file."""
    where = ["--uri", mongodb.uri, "--name", "orders", "--store", f"file:{tmp_path / 'positions'}"]
    return [*where, "--sink", f"file:{tmp_path / 'out.jsonl'}"]


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["value"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def test_produce_delivers_a_snapshot_and_then_changes(
    database: Database[dict[str, Any]], tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = f"{database.name}.orders"
    database.orders.insert_many([{"_id": 1}, {"_id": 2}])
    assert run(["produce", namespace, *flags, "--until-idle", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert shown[-1]["events"] == 2
    assert shown[-1]["snapshot"]["documents_read"] == 2
    database.orders.delete_one({"_id": 1})
    assert run(["produce", namespace, *flags, "--until-idle"]) == 0
    assert [event["operationType"] for event in lines(tmp_path)] == ["read", "read", "delete"]


def test_snapshot_reads_everything_once_more(
    database: Database[dict[str, Any]], tmp_path: Path, flags: list[str]
) -> None:
    namespace = f"{database.name}.orders"
    database.orders.insert_many([{"_id": 1}, {"_id": 2}])
    for _ in range(2):
        assert run(["snapshot", namespace, *flags]) == 0
    assert [event["documentKey"]["_id"] for event in lines(tmp_path)] == [1, 2, 1, 2]
    assert {event["op"] for event in lines(tmp_path)} == {"r"}


def test_verbs_by_hand_run_beside_a_producer_of_the_same_settings(
    database: Database[dict[str, Any]],
    mongodb: ReplicaSet,
    tmp_path: Path,
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its endpoint has the port of the settings, which only `produce` may open."""
    database.orders.insert_one({"_id": 1})
    with serve_endpoint(0) as taken:
        monkeypatch.setenv("TAILRACE_MONITOR__METRICS_PORT", str(taken))
        monkeypatch.setenv("TAILRACE_CAPTURE__NAMESPACES", f'["{database.name}.orders"]')
        assert run(["snapshot", *flags]) == 0
        assert run(["recover", "--from-now", *flags]) == 0
        assert run(["check", "--uri", mongodb.uri, "--store", f"file:{tmp_path / 'positions'}"]) == 0
        assert run(["produce", *flags, "--until-idle"]) == 64
    assert "metrics cannot be served" in capsys.readouterr().err


def test_gaps_shows_the_ledger_and_its_exit_code_says_whether_one_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", f"file:{tmp_path}"]
    assert run(["gaps", *store]) == 0
    with open_store(f"file:{tmp_path}") as opened:
        ledger = GapLedger(opened.cells, "orders")
        gap = ledger.record("mongodb-286", None)
    assert run(["gaps", *store]) == 1
    assert "mongodb-286" in capsys.readouterr().out
    with open_store(f"file:{tmp_path}") as opened:
        GapLedger(opened.cells, "orders").change(gap, state=GapState.ACCEPTED)
    assert run(["gaps", "--json", *store]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "accepted"


def test_recover_shows_first_what_it_would_do(
    database: Database[dict[str, Any]], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    database.orders.insert_many([{"_id": number} for number in range(10)])
    assert run(["produce", f"{database.name}.orders", *flags, "--until-idle"]) == 0
    capsys.readouterr()
    assert run(["recover", "--dry-run", "--json", *flags]) == 0
    forecast = json.loads(capsys.readouterr().out)
    assert forecast["is_lost"] is False
    assert forecast["documents"][f"{database.name}.orders"] == 10


def test_verify_compares_a_topic_with_its_collection(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TAILRACE_CAPTURE__TOPIC_PREFIX", f"verb-{database.name}")
    where = ["--uri", mongodb.uri, "--store", f"file:{tmp_path}", "--sink", f"kafka://{kafka.bootstrap_servers}"]
    namespace = f"{database.name}.orders"
    database.orders.insert_many([{"_id": number} for number in range(10)])
    assert run(["produce", namespace, *where, "--until-idle"]) == 0
    capsys.readouterr()
    assert run(["verify", "--source", namespace, *where, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["documents"], result["equal"]) == (10, 10)
    database.orders.delete_one({"_id": 3})
    assert run(["verify", "--source", namespace, *where, "--wait", "0.2"]) == 69
    assert "error[not-caught-up]" in capsys.readouterr().err


def test_verify_names_documents_that_no_record_can_hold(
    mongodb: ReplicaSet, kafka: Kafka, database: Database[dict[str, Any]], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Text that is no UTF-8, as `_id` and in a document that was fine before: both went to the dead letters."""
    monkeypatch.setenv("TAILRACE_CAPTURE__TOPIC_PREFIX", f"odd-{database.name}")
    where = ["--uri", mongodb.uri, "--store", f"file:{tmp_path}", "--sink", f"kafka://{kafka.bootstrap_servers}"]
    namespace = f"{database.name}.orders"
    odd = raw.element(raw.STRING, b"v", raw.string(b"\xff"))
    database.orders.insert_many([{"_id": number} for number in range(3)])
    database.orders.insert_one(RawBSONDocument(raw.document(raw.element(raw.STRING, b"_id", raw.string(b"\xff")))))
    assert run(["produce", namespace, *where, "--until-idle"]) == 0
    database.orders.update_one({"_id": 1}, {"$set": RawBSONDocument(raw.document(odd))})
    database.orders.update_one({"_id": 2}, {"$set": {"v": 5}})
    assert run(["produce", namespace, *where, "--until-idle"]) == 0
    capsys.readouterr()
    assert run(["verify", "--source", namespace, *where, "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["documents"], result["equal"], result["missing"], result["stale"]) == (4, 2, 1, 1)
    assert result["examples"] == {"missing": ["\ufffd"], "stale": [1]}


def test_ctrl_c_ends_a_producer_cleanly(database: Database[dict[str, Any]], tmp_path: Path, flags: list[str]) -> None:
    database.orders.insert_one({"_id": 1})
    command = [sys.executable, "-m", "tailrace.cli.app", "produce", f"{database.name}.orders", *flags, "--json"]
    process = GuardedProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["events"] == 1:
            break
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in complaint
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        assert store.holder("orders") is None, "the lease was given back"


def test_a_log_that_cannot_be_written_stops_nothing(database: Database[dict[str, Any]], flags: list[str]) -> None:
    """/dev/full is a disk without room. The stream logs its first steps, each of which would end it."""
    database.orders.insert_one({"_id": 1})
    command = [sys.executable, "-m", "tailrace.cli.app", "produce", f"{database.name}.orders", *flags, "--json"]
    with open("/dev/full", "w") as full:
        ended = run_guarded([*command, "--until-idle"], stdout=full, stderr=full, timeout=SECONDS)
    assert ended.returncode == 0


@pytest.mark.parametrize(
    "wrong",
    [["--slice", "5/4"], ["--source", "magic"], ["--sink", "nowhere"], ["--format", "xml"], ["--delivery", "maybe"]],
)
def test_wrong_flags_are_refused_with_a_hint(
    wrong: list[str], mongodb: ReplicaSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["produce", "--uri", mongodb.uri, "--store", f"file:{tmp_path}", "--sink", "stdout:", *wrong]
    assert run(given) == 64
    assert capsys.readouterr().err.splitlines()[-1].startswith("error[settings-invalid]")
