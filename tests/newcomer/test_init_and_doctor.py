"""`init` writes settings that work, and `doctor` says what does not, and what to do."""

from __future__ import annotations

import json
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from listening import serving_http
from tailrace.cli.app import run
from tailrace.stand import Kafka, ReplicaSet


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return {each["check"]: each for each in json.loads(capsys.readouterr().out)}


def test_what_init_writes_is_sound_and_runs(
    mongodb: ReplicaSet, database: Database[Any], kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    database.orders.insert_one({"_id": 1})
    flags = ["--uri", mongodb.uri, "--namespace", f"{database.name}.orders", "--name", database.name]
    assert run(["init", *flags, "--sink", f"kafka://{kafka.bootstrap_servers}"]) == 0
    text = Path("tailrace.toml").read_text()
    assert f"{database.name}.orders" in text.partition("# Found:")[2].splitlines()[0]
    assert tomllib.loads(text)["capture"]["namespaces"] == [f"{database.name}.orders"]
    assert run(["init", *flags]) == 78
    assert "--force" in capsys.readouterr().err
    assert run(["doctor", "--json"]) == 0
    found = findings(capsys)
    assert {each["level"] for each in found.values()} == {"ok"}
    assert "1 broker" in found["sink"]["found"]
    assert run(["produce", "--until-idle"]) == 0
    capsys.readouterr()
    assert run(["doctor"]) == 1
    assert "1 stream" in capsys.readouterr().out
    assert run(["doctor", "--json"]) == 1
    assert f"{database.name}.orders: old records are deleted by retention" in findings(capsys)["topics"]["found"]


def test_doctor_finds_everything_that_is_wrong_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--uri", "mongodb://ann:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=200"]
    wrong += ["--sink", "kafka://127.0.0.1:1", "--store", "redis://127.0.0.1:1"]
    assert run(["doctor", "--json", *wrong]) == 2
    printed = capsys.readouterr().out
    found = {each["check"]: each for each in json.loads(printed)}
    for check in ("mongodb", "position store", "sink"):
        assert found[check]["level"] == "failed"
        assert found[check]["advice"]
    assert found["privileges"]["level"] == "skipped"
    assert "hunter2" not in printed


def test_doctor_warns_of_a_collection_that_is_not_there(
    mongodb: ReplicaSet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_CAPTURE__NAMESPACES", "shpo.ordres")
    assert run(["doctor", "--json", "--uri", mongodb.uri, "--sink", "file:out.jsonl"]) == 1
    assert findings(capsys)["namespaces"]["found"] == "shpo.ordres does not exist"


@pytest.mark.parametrize(
    ("flag", "value", "next_step"),
    [
        ("--start", "later", "must be one of snapshot, now"),
        ("--sink", "nowhere", "Use kafka://, file:, stdout:"),
        ("--sink", "http://", "It looks like https://host/path."),
        ("--sink", "kafka://h?no.such.option=1", "CONFIGURATION.md"),
        ("--sink", "no_such_module:Sink", "Check the name"),
        ("--store", "nowhere", "Use file:, postgresql://"),
        ("--store", "", "Use file:, postgresql://"),
        ("--namespace", ".", "Write db.collection"),
        ("--namespace", "shop.orders.", "Write db.collection"),
        ("--namespace", "/[/", "Correct the pattern."),
        ("--name", "~gaps", "must not be empty or begin with ~"),
    ],
)
def test_init_writes_nothing_that_is_wrong(
    flag: str, value: str, next_step: str, mongodb: ReplicaSet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "--uri", mongodb.uri, "--sink", "file:out.jsonl", flag, value]) == 64
    assert not Path("tailrace.toml").exists()
    complaint = capsys.readouterr().err
    assert "error[settings-invalid]" in complaint
    assert next_step in complaint


def test_init_says_where_it_cannot_write(mongodb: ReplicaSet, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--uri", mongodb.uri, "--sink", "stdout:", "--output", "no/such/folder/x.toml"]) == 78
    assert "error[file-unusable]: cannot write no/such/folder/x.toml" in capsys.readouterr().err


def test_doctor_finds_what_needs_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It called a format that does not exist, and a sink that cannot be loaded, fine."""
    monkeypatch.setenv("TAILRACE_CAPTURE__FORMAT", "xml")
    monkeypatch.setenv("TAILRACE_CAPTURE__DEAD_LETTERS", "nowhere")
    monkeypatch.setenv("TAILRACE_AUDIT__LOG", "nowhere")
    flags = ["--uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200", "--sink", "no_such_module:Sink"]
    assert run(["doctor", *flags]) == 2
    shown = capsys.readouterr().out
    for complaint in ("no format 'xml'", "no dead letters called 'nowhere'", "audit.log cannot be", "cannot load"):
        assert complaint in shown


@pytest.mark.parametrize("flags", [["--store", "postgresql://["], ["--sink", "http://["], ["--sink", "redis://["]])
def test_what_is_no_url_is_refused_before_doctor_looks(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200", *flags]) == 64
    assert "error[settings-invalid]" in capsys.readouterr().err


def test_init_looks_at_the_server_of_the_settings(
    mongodb: ReplicaSet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAILRACE_MONGODB__URI", mongodb.uri)
    assert run(["init", "--yes", "--sink", "file:out.jsonl"]) == 0
    assert tomllib.loads(Path("tailrace.toml").read_text())["mongodb"]["uri"] == mongodb.uri


class _NoRegistry(BaseHTTPRequestHandler):
    """Answers as a registry does at a path that is not that of its API."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *words: Any) -> None:
        pass


def test_doctor_asks_the_schema_registry(
    mongodb: ReplicaSet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAILRACE_CAPTURE__FORMAT", "avro")
    monkeypatch.setenv("TAILRACE_CAPTURE__SINK", "stdout:")
    monkeypatch.setenv("TAILRACE_REGISTRY__URL", "http://ann:hunter2@127.0.0.1:1")
    assert run(["doctor", "--json", "--uri", mongodb.uri]) == 2
    printed = capsys.readouterr().out
    found = {each["check"]: each for each in json.loads(printed)}
    assert "does not answer" in found["registry"]["found"]
    assert "hunter2" not in printed
    server = ThreadingHTTPServer(("127.0.0.1", 0), _NoRegistry)
    with serving_http(server, "no-registry"):
        monkeypatch.setenv("TAILRACE_REGISTRY__URL", f"http://127.0.0.1:{server.server_port}")
        assert run(["doctor", "--json", "--uri", mongodb.uri]) == 2
    found = findings(capsys)
    assert "not the API of a schema registry" in found["registry"]["found"]
    assert "/apis/ccompat" in found["registry"]["advice"]


def test_an_audit_log_that_cannot_be_written_shows_before_anything_runs(
    mongodb: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("a file where a folder would have to be")
    monkeypatch.setenv("TAILRACE_AUDIT__LOG", f"file:{tmp_path}/taken/audit.jsonl")
    assert run(["doctor", "--json", "--uri", mongodb.uri, "--sink", "stdout:"]) == 2
    assert "audit-unavailable" in capsys.readouterr().out
    flags = ["--uri", mongodb.uri, "--sink", f"file:{tmp_path}/out", "--store", f"file:{tmp_path}/positions"]
    assert run(["produce", "--until-idle", *flags]) == 69
    assert "audit-unavailable" in capsys.readouterr().err
    assert not Path("out").exists()


def test_settings_shows_tables_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tailrace.toml").write_text('[[policy.rules]]\nfields = ["card"]\naction = "drop"\n')
    assert run(["settings", "--json"]) == 0
    values = {each["key"]: each["value"] for each in json.loads(capsys.readouterr().out)}
    assert values["policy.rules"] == [{"namespaces": ["*"], "fields": ["card"], "action": "drop"}]
