"""`tailrace sql --engine spark`: what Spark refuses is one line, without the stack of the JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.app import run
from tailrace.cli.spark_session import _leave_stacks_out

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(autouse=True)
def ask_the_shared_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[Any]:
        _leave_stacks_out()
        yield spark

    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", shared)
    monkeypatch.setenv("TAILRACE_WAREHOUSE__CATALOG", "asked")


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("DELETE FROM tailrace.dead_letters WHERE batch < 7", "there is no such table in tailrace"),
        ("SELECT nothing FROM nobody.knows", "nobody"),
        ("SELEC 1", "SELEC"),
    ],
)
def test_a_refused_query_is_one_line(
    query: str, complaint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without dead letters their table is not there, and Spark took its database for a kind of file."""
    assert run(["sql", "--engine", "spark", "--folder", str(tmp_path / "lake"), query]) == 64
    said = capfd.readouterr().err
    assert complaint in said
    assert [line for line in said.splitlines() if line.startswith("error[usage]")]
    assert "stacktrace" not in said


def test_documents_in_a_row_are_documents(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They were shown as `Row(city='Bergen')`."""
    query = "SELECT named_struct('city', 'Bergen') AS customer, array(named_struct('n', 1)) AS lines"
    assert run(["sql", "--engine", "spark", "--json", "--folder", str(tmp_path / "lake"), query]) == 0
    assert json.loads(capfd.readouterr().out) == {"customer": {"city": "Bergen"}, "lines": [{"n": 1}]}
