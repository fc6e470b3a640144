"""The tutorial, word for word: its commands are run in its order, and print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT, Block, blocks
from tailrace.owned import GuardedProcess, run_guarded

INSTALL = "make env\n. .venv/bin/activate\n"
"""What `make test` itself did before this test could run; everything behind it is run here."""
MARK = "=== end of a block"
SECONDS = 900


def commands() -> list[Block]:
    shown = blocks("tutorial.md")
    assert shown[0] == Block("sh", INSTALL)
    assert {block.language for block in shown} == {"sh", "text"}
    return shown[1:]


def script() -> str:
    """All commands as one program that stops at the first failure, with a mark behind each block."""
    lines = ["set -euo pipefail"]
    for block in commands():
        if block.language == "sh":
            lines += [block.text, f"echo '{MARK}'"]
    return "\n".join(lines)


def run(clone: Path, home: Path) -> str:
    """Run the program in a folder like a clone, and leave no process behind."""
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    process = GuardedProcess(
        ["bash", "-c", script()],
        cwd=clone, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()  # what the script put into the background ends with it
        run_guarded([sys.executable, "-m", "tailrace.cli.app", "stand", "down"], env=environment, timeout=SECONDS)
    assert process.returncode == 0, output[-4000:] + "".join(
        f"\n--- {log.name}\n{log.read_text()[-2000:]}" for log in (clone / "tutorial").glob("*.log")
    )
    return output


def pattern(line: str) -> re.Pattern[str]:
    """What a printed line has to look like: times and ids may be others, `…` stands for anything."""
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{24}", "HEX", line)
    line = re.sub(r"\d+ s\b", "LONG", re.sub(r"[\d.]+ (?=kB|GB)", "TIME ", line))
    line = re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z|\d\d:\d\d:\d\d|127.0.0.1:\d+|\b\d{10},\d+|826AFA\w+", "TIME", line)
    parts = re.split(r"(\s+|…)", line.strip())
    text = "".join(".*" if part == "…" else r"\s+" if part.isspace() else re.escape(part) for part in parts)
    for name, form in {"HEX": "[0-9a-f-]+", "TIME": "[\\w:.,-]+", "LONG": "[0-9a-z ]+"}.items():
        text = text.replace(name, form)
    return re.compile(text + r"(?!\w)")


@pytest.mark.timeout(SECONDS + 120)
def test_every_command_works_and_prints_what_is_shown(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "examples").symlink_to(ROOT / "examples")
    outputs = iter(run(clone, tmp_path / "state").split(MARK))
    printed = ""
    for block in commands():
        if block.language == "sh":
            printed = next(outputs)
            continue
        for line in filter(None, block.text.splitlines()):
            assert pattern(line).search(printed), f"{line!r} was not printed in\n{printed}"
    assert not (clone / "tutorial").exists()
