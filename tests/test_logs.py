"""One way to log: structlog's where a program configures it, else Python's own logging."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

import tailrace
from tailrace.logs import get_logger

SOURCE = Path(tailrace.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception"}
OTHERS = {
    "capture/kafka_address.py": "librdkafka's client takes a logger of Python's",
    "capture/kafka_handover.py": "what librdkafka logs keeps the level it has there",
    "cli/log.py": "brings what libraries log into the same form",
    "dashboard/web/serving.py": "uvicorn is silenced",
    "logs.py": "where nobody has configured structlog",
}


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    config = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    root = logging.getLogger()
    bridges = [handler for handler in root.handlers if type(handler).__module__.startswith("tailrace")]
    for bridge in bridges:  # what the command line of another test set up
        root.removeHandler(bridge)
    yield
    for bridge in bridges:
        root.addHandler(bridge)
    structlog.reset_defaults()
    if config is not None:
        structlog.configure(**config)


def test_without_a_configuration_lines_go_to_logging(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "app.orders"):
        get_logger("app.orders").info("stream_opened", stream="orders")
        get_logger("app.orders").bind(shard="s0").warning("shard_stalled")
        get_logger("app.orders").debug("too_much")
    assert [record.getMessage() for record in caplog.records] == [
        "event='stream_opened' stream='orders'",
        "event='shard_stalled' shard='s0'",
    ]
    assert capsys.readouterr().out == ""


def test_with_one_they_go_where_it_says() -> None:
    log = get_logger("app.orders")
    with capture_logs() as lines:
        log.info("stream_opened", stream="orders")
    assert lines == [{"event": "stream_opened", "stream": "orders", "log_level": "info"}]


def calls_in(file: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(file.read_text())):
        is_level = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
        if is_level and re.search(r"\b_?log(ger)?\b|get_logger", ast.unparse(node.func.value)):
            yield node


def test_events_have_names_and_key_values() -> None:
    wrong = [
        f"{file.relative_to(SOURCE)}:{call.lineno} {ast.unparse(call)[:100]}"
        for file in sorted(SOURCE.rglob("*.py"))
        for call in calls_in(file)
        if len(call.args) != 1
        or (isinstance(call.args[0], ast.Constant) and not re.fullmatch(r"[a-z][a-z0-9_]*", str(call.args[0].value)))
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_else_logs() -> None:
    found = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if re.search(r"^import logging$|structlog\.get_logger", file.read_text(), re.MULTILINE)
    }
    assert found == set(OTHERS)
