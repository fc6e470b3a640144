"""The Dockerfile: what it copies is there and reaches the build, its extras exist, and it starts the program."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

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


def test_the_package_finds_all_that_its_build_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = {source for words in map(shlex.split, of("COPY")) for source in words[:-1]}
    assert {project["readme"], "src", "pyproject.toml"} <= copied


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
