"""The Dockerfile: what it copies is there and reaches the build, its extras exist, and it starts the program."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tailrace.owned import run_guarded
from tailrace.settings import ENVIRONMENT_PREFIX, describe

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
LINES = [tuple(line.split(maxsplit=1)) for line in TEXT.splitlines() if line and not line.startswith("#")]


def of(instruction: str) -> list[str]:
    return [line[1] for line in LINES if line[0] == instruction]


def test_instructions_are_known() -> None:
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}
    assert {line[0] for line in LINES} <= known
    assert LINES[0][0] == "ARG"
    assert LINES[1][0] == "FROM"


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    stages = {stage.partition(" AS ")[2] for stage in of("FROM")} - {""}
    for words in map(shlex.split, of("COPY")):
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists()
            assert source in let_through


def test_the_image_can_be_built_from_what_is_copied(tmp_path: Path) -> None:
    """What the build stage does, without Docker: the copied files alone become a package whose verbs start."""
    context, installed = tmp_path / "context", tmp_path / "installed"
    context.mkdir()
    for words in map(shlex.split, of("COPY")):
        if words[0].startswith("--from="):
            continue
        for source in words[:-1]:
            target = context / words[-1] / (Path(source).name if words[-1] == "./" else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("target"))
            else:
                shutil.copy(ROOT / source, target)
    run("-m", "hatchling", "build", "--target", "wheel", folder=context)
    [wheel] = (context / "dist").glob("*.whl")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel), folder=tmp_path)
    first = f"import sys; sys.path.insert(0, {str(installed)!r}); import tailrace; "
    assert str(installed) in run("-c", first + "print(tailrace.__file__)", folder=tmp_path)
    start = "from tailrace.cli.app import run; sys.exit(run(sys.argv[1:]))"
    assert "Usage" in run("-c", first + start, "produce", "--help", folder=tmp_path)
    assert (installed / "tailrace" / "up" / "fraud_signals").is_dir()


def test_the_wheel_of_the_kernel_needs_neither_rust_nor_anything_else(tmp_path: Path) -> None:
    """The wheel that `kernel/build` keeps, which is made as the image makes its own, in a Python that has nothing."""
    pytest.importorskip("tailrace_kernel")
    mark = Path(sys.prefix) / ".kernel"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace" / "kernel"
    wheels = list(cache.glob(f"{mark.read_text().strip()}-*/*.whl")) if mark.exists() else []
    if not wheels:
        pytest.skip("the kernel was not built by kernel/build")
    assert "-cp311-abi3-" in wheels[0].name
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(tmp_path / "installed"))
    run(*install, str(wheels[0]), folder=tmp_path)
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); import tailrace_kernel as kernel; "
    program += "print(kernel.__file__, kernel.slice_documents(bytes([5, 0, 0, 0, 0]), 0))"
    assert str(tmp_path) in run("-I", "-S", "-c", program, folder=tmp_path)


def run(*arguments: str, folder: Path) -> str:
    done = run_guarded([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = [line.removeprefix("EXTRAS=") for line in of("ARG") if line.startswith("EXTRAS=")]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    [python] = [line.removeprefix("PYTHON=") for line in of("ARG") if line.startswith("PYTHON=")]
    assert python.startswith(project["requires-python"].removeprefix(">="))


def test_it_starts_the_program_as_nobody_special_with_variables_that_exist() -> None:
    assert json.loads(of("ENTRYPOINT")[0]) == ["tailrace"]
    assert of("USER")[0] != "root"
    known = {ENVIRONMENT_PREFIX + key.upper().replace(".", "__") for key, *_ in describe()}
    set_ = {word.partition("=")[0] for line in of("ENV") for word in shlex.split(line)}
    assert {name for name in set_ if name.startswith(ENVIRONMENT_PREFIX)} <= known
