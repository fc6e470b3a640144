"""What a run shows: lines in a pipe, JSON for programs, a table on a terminal; never a password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tailrace.settings import Settings
from tailrace.up.guide import Guide
from tailrace.up.plan import Addresses, Plan
from tailrace.up.supervisor import Report, State
from tailrace.up.views import Beat, JsonView, PlainView, TerminalView, View

LOG = Path("/run/logs/producer.log")
UP = Report("producer", State.UP, 1.9, 4242, "mongodb://u:secret@h/", LOG, 1)
GAVE_UP = Report("producer", State.GAVE_UP, 0, 0, "", LOG, 4, "producer is stopped for good: it ended\nlast words")


@pytest.fixture
def guide(tmp_path: Path) -> Guide:
    plan = Plan(Settings(), demo=True)
    addresses = Addresses("mongodb://u:secret@h/", "h:9", "redis://h:6", 1, 8480)
    settings = Settings.load(None, plan.effective(tmp_path, addresses))
    return Guide.of(plan, settings, tmp_path / "tailrace.toml", tmp_path / "logs", 4242)


def run_through(view: View, guide: Guide) -> None:
    with view:
        view.changed(Report("producer", State.STARTING, 0, 0, "", LOG, 1))
        view.changed(UP)
        view.ready(guide)
        view.tick([], Beat("live", 1_234, 50.0))
        view.changed(
            Report("producer", State.DOWN, 9, 4242, "", LOG, 1, "it was killed by signal 9; next start in 0.4 s")
        )
        view.changed(Report("producer", State.STARTING, 0.4, 0, "", LOG, 2))
        view.changed(GAVE_UP)
        view.stopping()
        view.changed(Report("producer", State.STOPPED, 9, 4242, "", LOG, 2))


def test_a_pipe_gets_lines(guide, capsys):
    run_through(PlainView(), guide)
    printed = capsys.readouterr().out
    for text in ("up after 1.9 s, pid 4242", "killed by signal 9", "starting again (2)", "last words", "kill -9 4242"):
        assert text in printed
    assert "http://127.0.0.1:8480/" in printed
    assert "mongodb://u:***@h/" in printed


def test_a_program_gets_json(guide, capsys):
    run_through(JsonView(), guide)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in printed] == ["part", "part", "ready", *["part"] * 4, "stopped"]
    assert printed[1]["address"] == "mongodb://u:***@h/"
    assert printed[2]["dashboard"] == "http://127.0.0.1:8480/"
    assert printed[2]["suggestions"][-1]["commands"] == ["kill -9 4242"]


def test_a_terminal_gets_a_table_and_the_commands_in_one_piece(guide):
    console = Console(force_terminal=True, width=60, record=True)
    run_through(TerminalView(console), guide)
    printed = console.export_text()
    for text in ("producer", "4242", "1.9", "Everything is up", "last words", "Everything is stopped."):
        assert text in printed
    for suggestion in guide.suggestions:
        for command in suggestion.commands:
            assert command in printed, "a command that is broken over lines cannot be copied"


def test_on_a_terminal_the_bottom_line_says_what_is_down(guide):
    console = Console(force_terminal=True, width=100, record=True)
    view = TerminalView(console)
    with view:
        view.ready(guide)
        view.tick(["kafka"], None)
        console.print(view)
        view.tick([], Beat("live", 1_234, 50.0))
        console.print(view)
    printed = console.export_text()
    assert "down: kafka" in printed
    assert "all parts up   live, 50 events/s, 1,234 in all" in printed


def test_without_a_definition_the_guide_says_how_to_have_features(tmp_path):
    plan = Plan(Settings())
    settings = Settings.load(None, plan.effective(tmp_path, Addresses("m", "h:9", "redis://h:6", 1, 2)))
    made = Guide.of(plan, settings, tmp_path / "tailrace.toml", tmp_path, 1)
    assert "--features" in made.notes[0]
    assert [suggestion.what.split()[0] for suggestion in made.suggestions] == ["Ask", "Kill"]
