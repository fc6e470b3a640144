"""The wheel, installed as a newcomer does, and what `make release` asks for first."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import venv
from pathlib import Path
from types import ModuleType

import pytest

from tailrace.owned import run_guarded

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_needs_one_version_and_a_dated_changelog(release: ModuleType, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md", "src/tailrace/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    assert release.problems_of(tmp_path) == ["CHANGELOG.md gives 0.1.0 no date, such as (2026-12-24)"]
    changelog.write_text(changelog.read_text().replace("(unreleased)", "(2026-12-24)", 1))
    assert release.problems_of(tmp_path) == []
    changelog.write_text("## 0.2.0 (2026-12-24)")
    assert "not 0.1.0" in release.problems_of(tmp_path)[0]


def test_the_wheel_runs_where_nothing_of_the_clone_is(tmp_path: Path) -> None:
    """Its own files alone are installed; what it depends on is borrowed from this environment."""
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    assert run_guarded(built, cwd=ROOT, capture_output=True, timeout=120).returncode == 0
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    shutil.unpack_archive(wheel, packages, "zip")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words, expected in ((["--version"], "tailrace 0.1.0"), (["token", "encode", "--at", "5"], "_data")):
        command = [str(python), "-m", "tailrace.cli.app", *words]
        asked = run_guarded(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert expected in asked.stdout, asked.stderr
    where = [str(python), "-c", "import tailrace; print(tailrace.__file__)"]
    found = run_guarded(where, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert str(packages) in found.stdout
