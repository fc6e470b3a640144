"""The wheel in environments of its own, as a newcomer installs it: the core alone, then each extra. `make newcomer`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from newcomer.test_core_only import NEEDS, NOBODY, RUN_LINES, commands_of
from tailrace.extras import EXTRA_OF
from tailrace.owned import GuardedProcess, run_guarded

ROOT = Path(__file__).parents[2]
EXTRAS = sorted(set(EXTRA_OF.values()))
pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]


class Environment:
    """A virtual environment with the wheel in it, an empty cache and an empty working folder."""

    def __init__(self, folder: Path, wheel: Path, extra: str | None) -> None:
        self._folder, self._bin = folder / "work", folder / "venv" / "bin"
        self._folder.mkdir(parents=True)
        venv.create(folder / "venv", with_pip=True)
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        self.call("pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), wanted, seconds=1_800)

    def _variables(self) -> dict[str, str]:
        """Give the variables of a fresh shell: nothing of the clone, nothing of this test run."""
        ours = ("TAILRACE_", "PYTHONPATH", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment |= {"XDG_CACHE_HOME": str(self._folder / "cache"), "XDG_STATE_HOME": str(self._folder / "state")}
        return environment | {"TAILRACE_MONGODB__TIMEOUT_SECONDS": "1", "TAILRACE_CAPTURE__RETRY_SECONDS": "1"}

    def call(self, *words: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, which must end well."""
        command = [str(self._bin / words[0]), *words[1:]]
        ended = run_guarded(
            command, cwd=self._folder, env=self._variables(), capture_output=True, text=True, timeout=seconds
        )
        assert ended.returncode == 0, ended.stderr
        return ended

    def missing(self, lines: list[list[str]]) -> list[set[str]]:
        """Run command lines, and give the extras that each asks for."""
        (self._folder / "lines.json").write_text(json.dumps(lines))
        self.call("python", str(RUN_LINES), "lines.json", "results.json", seconds=1_800)
        results = json.loads((self._folder / "results.json").read_text())
        assert not [each for each in results if "error[unexpected]" in each["stderr"]]
        return [asked_in(each["stderr"]) for each in results]

    def starts_dashboard(self) -> bool:
        """Start the dashboard, wait until it names its address, and stop it."""
        command = [str(self._bin / "tailrace"), "dashboard", "--port", "0"]
        process = GuardedProcess(
            command,
            cwd=self._folder,
            env=self._variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            return any("http://127.0.0.1:" in line for line in process.stdout)
        finally:
            process.terminate()
            process.wait(timeout=120)


def asked_in(stderr: str) -> set[str]:
    """Give the extras that an error names."""
    return set(",".join(re.findall(r"pip install 'tailrace\[([\w,]+)\]'", stderr)).split(",")) - {""}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    assert run_guarded(built, cwd=ROOT, capture_output=True, timeout=300).returncode == 0
    return next(folder.glob("*.whl"))


def brought_by(extra: str | None) -> set[str]:
    """Give an extra and those that it includes."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    included = re.findall(r"tailrace\[([\w,]+)\]", " ".join(declared.get(extra, ())))
    return {extra, *",".join(included).split(",")} - {""} if extra else set()


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_with_an_extra_its_verbs_no_longer_ask_for_it(extra: str | None, wheel: Path, tmp_path: Path) -> None:
    """Those of the other extras do, before they ask a server for anything, and everything else still works."""
    environment = Environment(tmp_path, wheel, extra)
    assert "tailrace" in environment.call("tailrace", "--version").stdout
    assert "settings" in environment.call("tailrace", "--help").stdout
    brought = brought_by(extra)
    commands = commands_of(NOBODY, "shop.orders", tmp_path)
    if "dashboard" in brought:
        del commands["dashboard"]
        assert environment.starts_dashboard()
    for name, asked in zip(commands, environment.missing(list(commands.values())), strict=True):
        needed = set(NEEDS.get(name, "").split(",")) - {""}
        assert not asked & brought, f"{name} asks for {asked}"
        assert asked or needed <= brought, f"{name} does not name the extra that it needs: {needed}"


def test_the_core_shows_its_first_events_with_nothing_else_there(wheel: Path, tmp_path: Path) -> None:
    """`uvx tailrace demo` in effect: it fetches MongoDB into an empty cache, starts it and shows events."""
    shown = Environment(tmp_path, wheel, None).call("tailrace", "demo", "--seconds", "3", seconds=900).stdout
    assert re.search(r"[1-9]\d* events in \d+ s", shown), shown
