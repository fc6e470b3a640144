"""The fixtures of the sinks: each with its other side, and dead letters in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sink_sides import SIDES, FileSide, KafkaSide, OtherSide, RedisSide, WebhookSide
from tailrace.capture.dead_letters.dead_letters import FILE, DeadLetters, FileDeadLetters
from tailrace.stand import Kafka


@pytest.fixture
def dead_letters(tmp_path: Path) -> FileDeadLetters:
    return FileDeadLetters(tmp_path / "dead")


@pytest.fixture
def letters(tmp_path: Path) -> Callable[[], list[Any]]:
    """Read the dead letters."""
    path = tmp_path / "dead" / FILE
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def make_side(kind: str, request: pytest.FixtureRequest, dead_letters: DeadLetters) -> OtherSide:
    if kind == "kafka":
        return KafkaSide(dead_letters, request.getfixturevalue("kafka"))
    if kind == "file":
        return FileSide(dead_letters, request.getfixturevalue("tmp_path"))
    if kind == "webhook":
        return WebhookSide(dead_letters)
    return RedisSide(dead_letters, request.getfixturevalue("redis_server"))


PYTHONS_CLIENT = "kafka, record by record"


@pytest.fixture(params=[*SIDES, PYTHONS_CLIENT])
def side(
    request: pytest.FixtureRequest, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OtherSide]:
    """Every other side; Kafka's twice, because records are handed over by the kernel and by Python's client."""
    if request.param == PYTHONS_CLIENT:
        monkeypatch.setenv("TAILRACE_KERNEL", "off")
    made = make_side("kafka" if request.param == PYTHONS_CLIENT else request.param, request, dead_letters)
    try:
        yield made
    finally:
        made.go_on()
        made.close()


@pytest.fixture(params=["kernel", "python"])
def handover(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to hand records to Kafka: batches through the kernel, or one by one through Python's client."""
    if request.param == "kernel":
        pytest.importorskip("tailrace_kernel")
    monkeypatch.setenv("TAILRACE_KERNEL", "on" if request.param == "kernel" else "off")
    return str(request.param)


@pytest.fixture
def kafka_side(kafka: Kafka, dead_letters: DeadLetters) -> KafkaSide:
    return KafkaSide(dead_letters, kafka)


@pytest.fixture
def webhook_side(dead_letters: DeadLetters) -> Iterator[WebhookSide]:
    side = WebhookSide(dead_letters)
    yield side
    side.close()
