"""Whatever the documentation names exists: verbs and flags, targets, tests, files, settings, Python names."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from command_lines import complaint_about
from docs.pages import DOCS, ROOT, all_pages, blocks
from tailrace.features.declaration import parse_definition
from tailrace.settings import Settings, describe
from tailrace.settings_source import file_keys

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in all_pages()]


def command_lines(text: str) -> list[str]:
    """Every use of the program: a line of a code block, or inline code."""
    text = re.sub(r" \\\n\s+", " ", text)
    shells = "\n".join(re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    fenced = re.findall(r"^(?:\$ )?(tailrace [^\n]*)$", shells, re.MULTILINE)
    indented = re.findall(r"^(?: {4,}|\$ )(?:\.venv/bin/)?(tailrace [^\n]*)$", text, re.MULTILINE)
    return fenced + indented + re.findall(r"`(?:\.venv/bin/)?(tailrace [^`]*)`", text)


@pytest.mark.parametrize("page", PAGES)
def test_command_lines_are_understood(page: Path) -> None:
    wrong = {line: said for line in command_lines(page.read_text()) if (said := complaint_about(line))}
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^ {4}|^)make ((?:[a-z0-9-]+ ?)+)", page.read_text(), re.MULTILINE)
    assert {target for words in named for target in words.split()} <= targets


@pytest.mark.parametrize("page", PAGES)
def test_tests_and_files_exist(page: Path) -> None:
    text = page.read_text()
    for file, test in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", text):
        assert (ROOT / file).exists(), file
        assert not test or re.search(rf"^(?:async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), (
            f"{file}::{test}"
        )
    for path in re.findall(r"`((?:deploy|bench|examples|docs)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_settings_exist(page: Path) -> None:
    known = {key for key, *_ in describe()}
    sections = {key.partition(".")[0] for key in known}
    named = set(re.findall(r"`(\w+\.\w+)(?: = [^`]*)?`", page.read_text()))
    assert {key for key in named if key.partition(".")[0] in sections and not key.endswith((".py", ".toml"))} <= known


def code(language: str) -> list[object]:
    return [
        pytest.param(block.text, id=f"{page.relative_to(DOCS).as_posix()} {number}")
        for page in sorted(DOCS.rglob("*.md"))
        for number, block in enumerate(blocks(page.relative_to(DOCS).as_posix()))
        if block.language == language
    ]


@pytest.mark.parametrize("text", code("toml"))
def test_toml_is_settings_or_a_definition(text: str) -> None:
    document = tomllib.loads(text)
    if "feature" in document:
        parse_definition(document)
    else:
        for key in file_keys(Settings):  # a file of a secret need not be there
            section, name = key.split(".")
            if document.get(section, {}).pop(f"{name}_file", None):
                is_table = isinstance(getattr(getattr(Settings(), section), name), dict)
                document[section][name] = {} if is_table else "in its file"
        Settings.model_validate(document)


@pytest.mark.parametrize("text", code("python"))
def test_python_imports_what_there_is(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tailrace"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
