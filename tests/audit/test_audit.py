"""What people do is written down before it is done, with who and from where; otherwise it is not done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pymongo.database import Database

from tailrace.audit import Actor, open_audit
from tailrace.cli.app import run
from tailrace.errors import AuditUnavailable, SettingsError
from tailrace.settings import Settings
from tailrace.stand import Kafka, ReplicaSet

ANN = Actor("ann", "10.0.0.1")


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def of(url: str) -> Settings:
    return Settings.model_validate({"audit": {"log": url}})


def test_entries_are_appended_and_nobody_else_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "new" / "audit.jsonl"
    for number in range(2):
        with open_audit(of(f"file:{file}")) as audit:
            audit.record(ANN, "pause", f"orders{number}", password="hunter2", reason="maintenance")
    first, second = entries(file)
    assert (first["who"], first["from"], first["action"], first["stream"]) == ("ann", "10.0.0.1", "pause", "orders0")
    assert first["details"] == {"password": "***", "reason": "maintenance"}
    assert second["stream"] == "orders1"
    assert file.stat().st_mode & 0o077 == 0


def test_an_action_that_fails_has_a_second_entry(tmp_path: Path) -> None:
    with open_audit(of(f"file:{tmp_path}/a")) as audit, pytest.raises(SettingsError):  # noqa: SIM117
        with audit.action(ANN, "recover", "orders"):
            raise SettingsError("no")
    assert [(e["outcome"], e.get("details", {}).get("error")) for e in entries(tmp_path / "a")] == [
        ("begun", None),
        ("failed", "settings-invalid"),
    ]


def test_what_cannot_be_written_down_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = []
    audit = open_audit(of(f"file:{tmp_path}/folder"))
    with pytest.raises(AuditUnavailable), audit.action(ANN, "recover", "orders"):
        done.append(1)
    assert not done


def test_a_topic_takes_the_entries(kafka: Kafka) -> None:
    topic = f"audit-{os.getpid()}"
    with open_audit(of(f"kafka://{kafka.bootstrap_servers}/{topic}")) as audit:
        audit.record(ANN, "position set", "orders")
    options = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.subscribe([topic])
    try:
        message = next(m for m in iter(lambda: consumer.poll(30), None) if not m.error())
        assert json.loads(message.value())["action"] == "position set"
    finally:
        consumer.close()


def test_verbs_write_down_what_they_do_and_changed_policies(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    database.people.insert_one({"_id": 1, "email": "ann@example.com"})
    log = tmp_path / "audit.jsonl"
    rule = '[[policy.rules]]\nfields = ["email"]\naction = "{}"\n'
    settings = (
        f'[mongodb]\nuri = "{mongodb.uri}"\n[capture]\nname = "people"\nnamespaces = ["{database.name}.people"]\n'
        f'sink = "file:{tmp_path}/out"\ninventory = "{tmp_path}/keys"\n'
        f'position_store = "file:{tmp_path}/positions"\n[audit]\nlog = "file:{log}"\n'
    )
    file = tmp_path / "tailrace.toml"

    def verb(*words: str, policy: str) -> None:
        file.write_text(settings + policy)
        assert run(["--config", str(file), *words]) == 0

    verb("produce", "--until-idle", policy="")
    assert log.read_text() == ""
    verb("produce", "--until-idle", policy=rule.format("mask"))
    verb("produce", "--until-idle", policy=rule.format("mask"))
    verb("produce", "--until-idle", policy="")
    verb("snapshot", policy="")
    verb("recover", "--anyway", policy="")
    verb("recover", "--from-now", policy="")
    verb("position", "set", "people", "--at", "2026-01-01T00:00:00Z", "--reason", "test", policy="")
    verb("position", "delete", "people", "--reason", "test", policy="")
    written = entries(log)
    assert [entry["action"] for entry in written] == [
        "policy changed", "policy changed", "snapshot", "recover", "start from now", "position set", "position delete",
    ]  # fmt: skip
    assert written[0]["details"]["after"]["rules"][0]["fields"] == ["email"]
    assert written[0]["details"]["before"]["rules"] == written[1]["details"]["after"]["rules"] == []
    assert all(str(os.getpid()) in entry["from"] and entry["who"] for entry in written)
    assert "ann@example.com" not in log.read_text()
