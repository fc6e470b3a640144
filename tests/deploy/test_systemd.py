"""The systemd units: what they start is a command line of the program, and systemd itself accepts them."""

from __future__ import annotations

import shlex
import shutil
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from command_lines import complaint_about_words
from tailrace.cli.app import EXIT_HISTORY_LOST, EXIT_STOP, EXIT_USAGE
from tailrace.owned import run_guarded
from waiting import SECONDS

UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "systemd").glob("*.service"))
PROGRAM = "/opt/tailrace/bin/tailrace"


def unit(file: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(file.read_text())
    return parser


def test_there_is_one_for_each_process_that_stays() -> None:
    verbs = {shlex.split(unit(file)["Service"]["ExecStart"])[3] for file in UNITS}
    assert verbs == {"produce", "serve", "dashboard"}


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_what_is_started_is_understood(file: Path) -> None:
    program, *words = shlex.split(unit(file)["Service"]["ExecStart"])
    assert program == PROGRAM
    assert complaint_about_words(words) is None


def test_a_template_names_no_port_that_its_second_instance_could_not_have() -> None:
    templates = [file for file in UNITS if file.stem.endswith("@")]
    assert templates
    for file in templates:
        assert not [word for word in shlex.split(unit(file)["Service"]["ExecStart"]) if "port" in word]


def test_two_instances_of_a_template_share_no_file_folder_or_name() -> None:
    for file in (file for file in UNITS if file.stem.endswith("@")):
        service = unit(file)["Service"]
        for key in ("ExecStart", "EnvironmentFile", "StateDirectory", "WorkingDirectory"):
            assert "%i" in service[key], f"{key} of {file.name} is the same for all instances"


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_limits_and_restarts_are_set(file: Path) -> None:
    service = unit(file)["Service"]
    for limit in ("MemoryMax", "CPUQuota", "TasksMax", "LimitNOFILE", "TimeoutStopSec"):
        assert service[limit]
    assert service["Restart"] == "on-failure"


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_what_a_restart_cannot_mend_is_not_restarted(file: Path) -> None:
    """And all else is, for as long as it takes: a server that is away must not use up a number of starts."""
    service = unit(file)["Service"]
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    final = {EXIT_USAGE, EXIT_STOP} | ({EXIT_HISTORY_LOST} if "produce" in service["ExecStart"] else set())
    assert prevented == final
    assert unit(file)["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here to read its units")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_systemd_reads_them_without_complaint(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / file.name.replace("@", "@orders")
    copy.write_text(file.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("tailrace"))))
    done = run_guarded(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=SECONDS
    )
    complaints = [line for line in done.stderr.splitlines() if copy.name in line]
    assert done.returncode == 0, done.stderr
    assert not complaints
