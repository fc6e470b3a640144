"""The wheel in environments of its own, as a newcomer installs it: the core alone, then each extra. `make newcomer`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from newcomer.test_core_only import NEEDS, commands_of
from tailrace.extras import EXTRA_OF
from tailrace.owned import run_guarded

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

    def call(self, *words: str, seconds: float = 120, is_fine: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of its programs."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        environment |= {"XDG_CACHE_HOME": str(self._folder / "cache"), "XDG_STATE_HOME": str(self._folder / "state")}
        environment |= {"TAILRACE_MONGODB__TIMEOUT_SECONDS": "1", "TAILRACE_CAPTURE__RETRY_SECONDS": "1"}
        command = [str(self._bin / words[0]), *words[1:]]
        ended = run_guarded(command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=seconds)
        assert not is_fine or ended.returncode == 0, ended.stderr
        return ended

    def missing(self, line: list[str]) -> set[str]:
        """The extras that a command line asks for."""
        said = self.call("tailrace", *line, is_fine=False).stderr
        assert "error[unexpected]" not in said
        return set(",".join(re.findall(r"pip install 'tailrace\[([\w,]+)\]'", said)).split(",")) - {""}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    assert run_guarded(built, cwd=ROOT, capture_output=True, timeout=300).returncode == 0
    return next(folder.glob("*.whl"))


@pytest.fixture(params=[None, *EXTRAS])
def extra_and_environment(
    request: pytest.FixtureRequest, wheel: Path, tmp_path: Path
) -> tuple[str | None, Environment]:
    return request.param, Environment(tmp_path, wheel, request.param)


def test_with_an_extra_its_verbs_no_longer_ask_for_it(
    extra_and_environment: tuple[str | None, Environment], tmp_path: Path
) -> None:
    """Those of the other extras do, and everything else still works."""
    extra, environment = extra_and_environment
    assert "tailrace" in environment.call("tailrace", "--version").stdout
    assert "settings" in environment.call("tailrace", "--help").stdout
    nobody = "mongodb://127.0.0.1:1/"
    brought = {extra} | {each for each in EXTRAS if extra and f"tailrace[{each}]" in " ".join(dependencies()[extra])}
    for name, line in commands_of(nobody, "shop.orders", tmp_path).items():
        asked = environment.missing(line)
        needed = NEEDS.get(name, "").split(",")[0]
        assert not asked & brought, f"{name} asks for {asked}"
        if needed and needed not in brought:
            assert asked, f"{name} does not say that it needs {needed}"


def dependencies() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["optional-dependencies"])


def test_the_core_shows_its_first_events_with_nothing_else_there(wheel: Path, tmp_path: Path) -> None:
    """`uvx tailrace demo` in effect: it fetches MongoDB into an empty cache, starts it and shows events."""
    shown = Environment(tmp_path, wheel, None).call("tailrace", "demo", "--seconds", "3", seconds=900).stdout
    assert re.search(r"[1-9]\d* events in \d+ s", shown), shown
