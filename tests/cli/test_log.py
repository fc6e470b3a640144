"""What the log says of a run: its start, the lease, where it opens, reconnects and its end, each in one line."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
from confluent_kafka import Producer
from pymongo import MongoClient
from pymongo.database import Database
from structlog.testing import capture_logs

from tailrace import watch
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.cli.app import globals_first, run
from tailrace.cli.log import configure_log
from tailrace.settings import LogSettings
from tailrace.stand import ReplicaSet


@pytest.fixture
def flags(mongodb: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TAILRACE_LOG__JSON_LINES", "true")
    where = ["--uri", mongodb.uri, "--name", "orders", "--store", f"file:{tmp_path / 'positions'}"]
    return [*where, "--sink", f"file:{tmp_path / 'out.jsonl'}"]


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """All lines but that of the error at the end; each has to be a JSON object."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines() if not line.startswith("error[")]


def test_a_run_logs_its_start_its_lease_its_position_and_its_end(
    database: Database[Any], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    database.orders.insert_one({"_id": 1})
    assert run(["produce", f"{database.name}.orders", *flags, "--until-idle"]) == 0
    lines = {line["event"]: line for line in logged(capsys)}
    assert lines["starting"]["namespaces"] == [f"{database.name}.orders"]
    assert lines["starting"]["sink"].startswith("file:")
    assert lines["lease_taken"]["epoch"] == 1
    assert "stream_opened" in lines
    assert lines["stopped"]["reason"] == "all was delivered"
    assert lines["stopped"]["events"] == 1


def test_waiting_for_a_lease_and_taking_it_over_are_logged_once(
    database: Database[Any], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        lease = store.acquire("orders", "elsewhere", seconds=60)
        threading.Timer(2.5, store.release, [lease]).start()
        assert run(["produce", f"{database.name}.orders", *flags, "--until-idle"]) == 0
    events = [line["event"] for line in logged(capsys)]
    assert events.count("waiting_for_lease") == 1
    assert events.index("lease_taken_over") > events.index("waiting_for_lease")


def test_an_error_is_the_reason_of_the_stop(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "shop.orders", *flags[:-1], "nomodule:Sink"]) == 64
    last = logged(capsys)[-1]
    assert (last["event"], last["reason"]) == ("stopped", "settings-invalid")


def test_lines_of_the_kafka_client_have_the_same_form_and_come_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The client says every few milliseconds that nobody answers."""
    configure_log(LogSettings(json_lines=True))
    producer = Producer(KafkaAddress.parse("kafka://127.0.0.1:1").config())
    for _ in range(20):
        producer.poll(0.1)
    (line,) = [line for line in logged(capsys) if "Connection refused" in line["event"]]
    assert line["logger"] == "tailrace.kafka"


@pytest.mark.parametrize(("level", "is_there"), [("info", True), ("warning", False)])
def test_the_level_is_a_flag(
    level: str, is_there: bool, database: Database[Any], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["produce", f"{database.name}.orders", *flags, "--until-idle", "--log-level", level]) == 0
    assert ("starting" in [line["event"] for line in logged(capsys)]) is is_there


def test_flags_of_all_verbs_may_stand_behind_the_verb() -> None:
    given = ["produce", "-v", "a.b", "--config", "x.toml", "--log-level=info", "--", "--debug"]
    assert globals_first(given) == ["-v", "--config", "x.toml", "--log-level=info", "produce", "a.b", "--", "--debug"]


def test_a_settings_file_may_be_named_behind_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("[capture]\nname = 'mine'\n")
    assert run(["settings", "--json", "--config", str(tmp_path / "mine.toml")]) == 0
    rows = {row["key"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["capture.name"] == "mine"


def test_reconnects_are_logged(mongodb: ReplicaSet, database: Database[Any]) -> None:
    structlog.reset_defaults()
    with (
        MongoClient(mongodb.uri, appname="reconnects") as client,
        capture_logs() as lines,
        watch(client[database.name].orders, max_await_time_ms=100) as stream,
    ):
        failing = {
            "failCommands": ["getMore"],
            "errorCode": 11602,
            "errorLabels": ["ResumableChangeStreamError"],
            "appName": "reconnects",  # nobody else may use it up
        }
        database.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=failing)
        database.orders.insert_one({"_id": 1})
        assert next(stream)["operationType"] == "insert"
    assert "change_stream_reconnects" in [line["event"] for line in lines]


@pytest.mark.parametrize(("given", "is_terminal", "is_json"), [
    (None, True, False), (None, False, True), (False, False, False), (True, True, True),
])  # fmt: skip
def test_lines_are_json_where_nobody_reads_them_at_a_terminal(
    given: bool | None, is_terminal: bool, is_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    configure_log(LogSettings(json_lines=given))
    structlog.get_logger().info("stream_opened", stream="orders")
    line = capsys.readouterr().err
    assert line.startswith("{") == is_json
    assert "orders" in line


def test_what_libraries_log_has_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a handler, Python would print their warnings as bare text between lines of JSON."""
    configure_log(LogSettings(json_lines=True))
    configure_log(LogSettings(json_lines=True))
    logging.getLogger("opentelemetry.sdk").warning("no answer from http://ann:hunter2@127.0.0.1:1")
    [line] = logged(capsys)
    assert line["logger"] == "opentelemetry.sdk"
    assert line["level"] == "warning"
    assert "hunter2" not in line["event"]
