"""Small things that went wrong for new users: each says now what is wrong, at once."""

from __future__ import annotations

import json
import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.database import Database

from tailrace import watch
from tailrace.capture.formats import make_format
from tailrace.capture.plugins import load_object
from tailrace.capture.positions import Position, open_store
from tailrace.cli.app import run
from tailrace.cli.failures import error_for
from tailrace.errors import ServerUnreachable, SettingsError
from tailrace.owned import GuardedProcess
from tailrace.settings import Settings, describe
from tailrace.spark.failures import error_of, explained
from tailrace.stand import Kafka, Postgres, Redis, ReplicaSet

FEATURES = Path(__file__).parents[2] / "examples" / "fraud_signals" / "features.toml"
AT = ["--at", "1777636800", "--reason", "test"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_misspelt_stream_makes_no_ghost(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["position", "set", "orders", *AT, "--create"]) == 0
    assert run(["position", "set", "order", *AT]) == 78
    complaint = capsys.readouterr().err
    assert "no stream is called order; the store has: orders" in complaint
    assert "--create" in complaint
    assert open_store("file:.tailrace/positions").names() == ["orders"]


def test_a_position_can_be_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["position", "set", "orders", *AT, "--create"]) == 0
    assert run(["position", "delete", "orders", "--reason", "a ghost"]) == 0
    store = open_store("file:.tailrace/positions")
    assert store.names() == []
    assert store.history("orders")[0].what == "deleted"
    assert run(["position", "delete", "orders", "--reason", "again"]) == 78
    assert "no stream is called orders" in capsys.readouterr().err


def test_flat_without_fields_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"capture\.fields"):
        make_format("flat")


def test_modules_of_the_working_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    here = {"", os.getcwd()}
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in here])
    (tmp_path / "my_format_here.py").write_text("def mine(event): return 'x'\n")
    assert load_object("my_format_here:mine")({}) == "x"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class Mine: pass", "is not a Sink"),
        ("from tailrace.capture.sinks import Sink\nclass Mine(Sink): pass", "cannot be made"),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
    ],
)
def test_a_sink_of_ones_own_that_cannot_be_used(
    source: str, expected: str, tmp_path: Path, mongodb: ReplicaSet, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"my_sink_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source)
    assert run(["produce", "--uri", mongodb.uri, "--sink", f"{module}:Mine"]) == 64
    assert expected in capsys.readouterr().err


def test_a_wrong_role_of_postgresql_is_said_at_once(postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"postgresql://nobody_of_this_name@{postgres.dsn.partition('@')[2]}"
    assert run(["position", "show", "--store", url]) == 64
    assert "capture.position_store" in capsys.readouterr().err


def test_verify_waits_for_a_producer_that_was_started_just_before(
    mongodb: ReplicaSet, kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tailrace produce &`, then `tailrace verify`: it looked before the producer had its lease, and gave up."""
    assert run(["position", "set", "orders", *AT, "--create"]) == 0

    def produce() -> None:
        with open_store("file:.tailrace/positions") as store:
            lease = store.acquire("orders", "the producer")
            store.save(Position(None, Timestamp(2**32 - 1, 1)), lease)

    started = threading.Timer(1.0, produce)
    started.start()
    sink = f"kafka://{kafka.bootstrap_servers}"
    assert run(["verify", "--uri", mongodb.uri, "--name", "orders", "--sink", sink, "--topic", "no.such"]) != 69
    started.join()
    assert "error[not-caught-up]" not in capsys.readouterr().err


def test_verify_beside_the_first_producer_waits_for_its_snapshot(
    mongodb: ReplicaSet,
    kafka: Kafka,
    database: Database[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the home page has it: it found no topic yet, and said that the user lacks the privilege to read them."""
    database.orders.insert_many([{"_id": number, "text": "x" * 500} for number in range(20_000)])
    monkeypatch.setenv("TAILRACE_MONGODB__URI", mongodb.uri)
    monkeypatch.setenv("TAILRACE_CAPTURE__SINK", f"kafka://{kafka.bootstrap_servers}")
    monkeypatch.setenv("TAILRACE_CAPTURE__TOPIC_PREFIX", f"first-{database.name}")
    command = [sys.executable, "-m", "tailrace.cli.app", "produce", f"{database.name}.orders"]
    with open("produce.log", "w") as log, GuardedProcess(command, stdout=log, stderr=log) as producer:
        code = run(["verify", "--json"])
        producer.terminate()
    assert code == 0, capsys.readouterr().err
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["documents"], result["equal"]) == (20_000, 20_000)


def test_verify_says_first_that_a_file_cannot_be_read_back(
    mongodb: ReplicaSet, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asked for a producer to run, and with one, would have said that it was the wrong sink."""
    assert run(["position", "set", "orders", *AT, "--create"]) == 0
    assert run(["verify", "--uri", mongodb.uri, "--name", "orders", "--sink", "file:out.jsonl"]) == 64
    assert "the sink is not Kafka" in capsys.readouterr().err


def test_verify_without_a_producer_says_so_soon(
    mongodb: ReplicaSet,
    database: Database[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(import_module("tailrace.cli.verify"), "_SECONDS_TO_START", 0.2)
    assert run(["position", "set", "orders", *AT, "--create"]) == 0
    assert run(["verify", "--uri", mongodb.uri, "--name", "orders", "--sink", "kafka://127.0.0.1:1"]) == 69
    complaint = capsys.readouterr().err
    assert "error[not-caught-up]" in complaint
    assert "no process produces it" in complaint


def test_lookup_says_at_once_that_the_redis_of_the_features_is_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It retried for a minute as a job does, and blamed the position store."""
    monkeypatch.setattr("tailrace.features.reading.retry_until_available", lambda _: pytest.fail("it retries"))
    assert run(["lookup", "fraud", "5", "--redis", "redis://ann:hunter2@127.0.0.1:1"]) == 69
    complaint = capsys.readouterr().err
    assert complaint.startswith("error[feature-store-unavailable]: no Redis answers at redis://ann:")
    assert "features.redis_url" in complaint
    assert "hunter2" not in complaint


def test_a_wrong_password_of_redis_is_a_wrong_setting(redis_server: Redis, capsys: pytest.CaptureFixture[str]) -> None:
    url = redis_server.url.replace("redis://", "redis://ann:hunter2@")
    assert run(["lookup", "fraud", "5", "--redis", url]) == 64
    complaint = capsys.readouterr().err
    assert "features.redis_url" in complaint
    assert "hunter2" not in complaint


@pytest.mark.parametrize("line", [["watch", "a.b"], ["check"], ["init"], ["doctor", "--sink", "stdout:"]])
def test_an_absent_server_is_said_without_the_drivers_internals(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_MONGODB__TIMEOUT_SECONDS", "0.2")
    assert run([*line, "--uri", "mongodb://127.0.0.1:1/?replicaSet=rs0"]) in (2, 69)
    shown = "".join(capsys.readouterr())
    assert "127.0.0.1:1: [Errno 111] Connection refused" in shown
    for internal in ("Timeout:", "configured timeouts", "Topology Description"):
        assert internal not in shown


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (["warehouse", "run"], "warehouse.kafka_servers"),
        (["warehouse", "rebuild", "shop.orders"], "warehouse.kafka_servers"),
        (["features", "run", str(FEATURES)], "features.kafka_servers"),
    ],
)
def test_a_job_without_a_broker_fails_before_spark_starts(
    line: list[str], key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started a JVM, waited for minutes and showed the JVM's stack as an unexpected error."""
    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", lambda *_, **__: pytest.fail("it starts Spark"))
    assert run([*line, "--topics", "orders", "--servers", "127.0.0.1:1,127.0.0.1:2"]) == 69
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"error[server-unreachable]: no Kafka broker answers ({key}): 127.0.0.1:1: ")
    assert "127.0.0.1:2: [Errno 111] Connection refused" in complaint
    for servers in ("nowhere", "host:port", "kafka://"):
        assert run([*line, "--topics", "orders", "--servers", servers]) == 64
    assert run([*line, "--topics", "orders", "--format", "xml"]) == 64
    assert "xml" in capsys.readouterr().err
    assert run([*line, "--topics", "orders", "--format", "avro"]) == 64
    assert "Jobs read json, canonical" in capsys.readouterr().err


def test_an_error_of_spark_is_its_cause_without_the_jvms_stack() -> None:
    from pyspark.errors import PySparkException

    known = error_for(PySparkException("a\n\tat org.Spark.run()\nCaused by: java.io.IOException: no such bucket\n"))
    assert known is not None
    assert (known.code, known.message) == ("query-failed", "Spark: java.io.IOException: no such bucket")


@pytest.mark.parametrize("namespace", ["shop.", ".orders", "."])
def test_half_a_namespace_is_refused(namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", namespace]) == 64
    assert "db.collection" in capsys.readouterr().err


def test_resume_for_takes_seconds(database: Database[Any]) -> None:
    with watch(database.orders, resume_for=30) as stream:
        assert stream.alive
    with pytest.raises(TypeError, match="seconds"):
        watch(database.orders, resume_for="30")


def test_spark_shows_an_unreachable_server_as_one() -> None:
    """Spark carries an error as the text of its traceback, notes included."""
    client = MongoClient[Any]("mongodb://127.0.0.1:1", serverSelectionTimeoutMS=10)
    with pytest.raises(ServerUnreachable) as failure, explained():
        client.admin.command("ping")
    found = error_of(RuntimeError("\n".join([str(failure.value), *failure.value.__notes__])))
    assert found is not None
    assert found.code == "server-unreachable"


def test_types_of_settings_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    types = {key: kind for key, kind, *_ in describe()}
    assert types["mongodb.uri"] == "secret"
    assert types["capture.source"] == "change-stream | oplog"
    assert types["capture.namespaces"] == "list of text"
    assert types["capture.partitions"] == "integer > 0"
    for key, kind in types.items():
        assert not any(word in kind for word in ("typing", "pydantic", "Optional", "class")), key


def test_a_wrong_choice_names_the_right_ones() -> None:
    with pytest.raises(SettingsError, match=r"capture\.start: must be one of snapshot, now"):
        Settings.load(flags={"capture.start": "later"})


def test_the_placeholder_of_a_template_is_no_token() -> None:
    for key in ("monitor.control_token", "dashboard.token", "dashboard.control_token"):
        with pytest.raises(SettingsError, match=r"placeholder.*openssl"):
            Settings.load(flags={key: "change-me-control-token"})


def test_help_shows_switches_without_a_type_and_verbs_by_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["watch", "--help"]) == 0
    assert "<bool>" not in capsys.readouterr().out
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for group in ("Streams", "Capture", "Pipelines", "Operate", "Try it"):
        assert group in shown
    assert shown.index("Capture:") < shown.index("produce ") < shown.index("Pipelines:")


def test_settings_as_json_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["settings", "--json"]) == 0
    assert {"key", "type", "value", "default", "meaning"} == set(json.loads(capsys.readouterr().out)[0])
