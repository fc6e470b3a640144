"""The claims page: every promise names a command, and every command runs a test that exists."""

from __future__ import annotations

import re
import shlex

import pytest

from docs.pages import ROOT, read

ROWS = re.findall(r"^\| (?!promise|---)(.+?) \| (.+) \|$", read("claims.md"), re.MULTILINE)


def test_there_are_claims() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize(("promise", "checked"), ROWS, ids=[promise[:60] for promise, _ in ROWS])
def test_a_claim_can_be_checked(promise: str, checked: str) -> None:
    commands = re.findall(r"`([^`]+)`", checked)
    assert promise.endswith((".", ".)"))
    assert commands
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *words in map(shlex.split, commands):
        if program == "make":
            assert set(words) <= targets
            continue
        assert program == ".venv/bin/pytest"
        [node] = words
        file, _, test = node.partition("::")
        text = (ROOT / file).read_text()
        assert re.search(rf"^(?:async )?def {test or 'test_'}\w*\(", text, re.MULTILINE)
