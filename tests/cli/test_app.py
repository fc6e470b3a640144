"""The program's manners: help, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from rich.text import Text
from typer.main import get_command

from tailrace.cli.app import EXIT_ERROR, app, exit_code_of, run
from tailrace.errors import (
    AuditUnavailable,
    HistoryLost,
    LeaseLost,
    MissingExtra,
    NotAuthorized,
    NotInitiated,
    NotReplicaSet,
    ServerUnreachable,
    SettingsError,
    StreamRefused,
)
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.settings import describe
from waiting import SECONDS


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_help_names_every_verb(capsys):
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    for verb in ("demo", "stand", "settings"):
        assert verb in printed
    assert "Exit codes" in printed


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Give a command and all below it, with their full names."""
    yield name, command
    for verb, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {verb}")


@pytest.mark.parametrize(("name", "command"), list(commands(get_command(app), "tailrace")))
def test_no_help_text_is_taken_for_markup(name, command):
    """What stands in square brackets is a style for Rich, and is not printed."""
    for parameter in command.params:
        text = getattr(parameter, "help", None) or ""
        assert Text.from_markup(text).plain == text, f"{name} {parameter.name}"


@pytest.mark.parametrize("name", [name for name, _ in commands(get_command(app), "tailrace")])
def test_the_help_cuts_no_flag_short(name, monkeypatch, capsys):
    """`--full-document-befor…` cannot be typed."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    assert run([*name.split()[1:], "--help"]) == 0
    assert "…" not in capsys.readouterr().out


def test_the_flags_of_serve_name_their_settings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["serve", "--help"]) == 0
    assert "(gateway.port)" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["-h"], ["produce", "-h"], ["position", "set", "-h"]])
def test_help_has_a_short_name(arguments, capsys):
    assert run(arguments) == 0
    assert "Usage" in capsys.readouterr().out


def test_no_arguments_show_the_help(capsys):
    assert run([]) == 0
    assert "Usage" in capsys.readouterr().out


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tailrace ")


@pytest.mark.parametrize("arguments", [["no-such-verb"], ["stand", "up", "--no-such-flag"], ["demo", "--rate", "x"]])
def test_wrong_flags_give_one_line_and_exit_64(arguments, capsys):
    assert run(arguments) == 64
    complaint = capsys.readouterr().err
    assert complaint.startswith("error[usage]: ")
    assert complaint.count("\n") == 1
    assert "--help" in complaint


def test_unknown_settings_give_one_line_and_exit_64(tmp_path, capsys):
    (tmp_path / "tailrace.toml").write_text("[mongodb]\nurl = 'x'")
    assert run(["settings"]) == 64
    assert capsys.readouterr().err.startswith("error[settings-invalid]: unknown settings key mongodb.url. Run ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 64),
        (MissingExtra("x"), 64),
        (ServerUnreachable("x"), 69),
        (NotInitiated("x"), 69),
        (LeaseLost("x"), 69),
        (AuditUnavailable("x"), 69),
        (HistoryLost("x"), 75),
        (NotAuthorized("x"), 78),
        (NotReplicaSet("x"), 78),
    ],
    ids=lambda value: getattr(value, "code", value),
)
def test_the_exit_code_says_whether_a_restart_can_help(error, code):
    assert exit_code_of(error) == code


@pytest.mark.parametrize(("server_code", "code"), [(72, 78), (18, 78), (40324, 78), (499, EXIT_ERROR)])
def test_a_servers_error_that_nobody_knows_may_pass(server_code, code):
    """Such a stream is started again: it would fall behind for good while it waits for a person."""
    assert exit_code_of(StreamRefused("no", server_code=server_code)) == code


def test_an_unexpected_error_is_none_that_a_person_has_to_mend(monkeypatch, capsys):
    def broken() -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("tailrace.cli.app._command", lambda: lambda *_, **__: broken())
    assert run(["settings"]) == EXIT_ERROR
    assert capsys.readouterr().err.startswith("error[unexpected]: RuntimeError: bug")


def test_debug_shows_the_traceback(tmp_path, capsys):
    (tmp_path / "tailrace.toml").write_text("x = 1")
    assert run(["--debug", "settings"]) == 64
    assert "Traceback" in capsys.readouterr().err


def test_settings_as_json_mask_passwords(monkeypatch, capsys):
    monkeypatch.setenv("TAILRACE_MONGODB__URI", "mongodb://ann:hunter2@host/")
    assert run(["settings", "--json"]) == 0
    printed = capsys.readouterr().out
    rows = {row["key"]: row for row in json.loads(printed)}
    assert rows["mongodb.uri"]["value"] == "mongodb://ann:***@host/"
    assert "hunter2" not in printed
    assert run(["settings"]) == 0
    assert "hunter2" not in capsys.readouterr().out


def test_an_unknown_server_of_the_stand_is_refused(capsys):
    assert run(["stand", "up", "oracle"]) == 78
    assert "error[stand-failed]: no server is called oracle. Choose from: mongodb" in capsys.readouterr().err


def test_the_stand_comes_up_shows_itself_and_goes_down(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run(["stand", "status"]) == 1
    assert run(["stand", "up", "mongodb", "redis", "--json"]) == 0
    try:
        capsys.readouterr()
        assert run(["stand", "up"]) == 78
        assert "a stand is up already" in capsys.readouterr().err
        assert run(["stand", "status", "--json"]) == 0
        mongodb, redis = json.loads(capsys.readouterr().out)
        with MongoClient(mongodb["address"]) as client:
            client.shop.orders.insert_one({})
        assert redis["name"] == "redis"
        assert run(["stand", "settings"]) == 0
        settings = tomllib.loads(capsys.readouterr().out)
        assert settings == {"mongodb": {"uri": mongodb["address"]}, "features": {"redis_url": redis["address"]}}
        assert run(["stand", "status"]) == 0
        assert mongodb["address"] in capsys.readouterr().out
    finally:
        assert run(["stand", "down"]) == 0
    assert run(["stand", "status"]) == 1
    assert run(["stand", "settings"]) == 78
    for pid in mongodb["pids"] + redis["pids"]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_demo_shows_events_and_ends_by_itself():
    ended = run_guarded(
        [sys.executable, "-m", "tailrace.cli.app", "demo", "--seconds=3"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    assert "insert" in ended.stdout.splitlines()[-1]


def test_ctrl_c_ends_the_demo_cleanly():
    demo = GuardedProcess(
        [sys.executable, "-m", "tailrace.cli.app", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while "events/s" not in (line := demo.stdout.readline()):
        assert line, demo.stderr.read()
    demo.send_signal(signal.SIGINT)
    printed, complaints = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0
    assert complaints == ""
    assert "events in" in printed


def verbs(command, path=()):
    """All commands with their own flags, as click has them."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
    for name, each in (inner or {}).items():
        yield from verbs(each, (*path, name))


def test_each_flag_that_stands_for_a_setting_names_one_that_exists():
    keys = {key for key, *_ in describe()}
    named = [
        (verb, parameter.name, found[1])
        for verb, command in verbs(get_command(app))
        for parameter in command.params
        if (found := re.search(r"\(([a-z_]+\.[a-z_]+)\)\.$", getattr(parameter, "help", None) or ""))
    ]
    assert len({verb for verb, *_ in named}) > 15
    assert not [each for each in named if each[2] not in keys]
