"""The one table of MongoDB's error codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tailrace
from tailrace import server_codes

SETS = [name for name, value in vars(server_codes).items() if isinstance(value, frozenset)]


@pytest.mark.parametrize("name", SETS)
def test_the_codes_of_a_set_have_names_or_are_locations(name):
    for code, called in server_codes.named(getattr(server_codes, name)).items():
        assert called == server_codes.NAMES.get(code) or (code > 40_000 and called == f"Location{code}")


def test_a_code_has_one_meaning_for_capture():
    lists = ["HISTORY_LOST", "TOKEN_NOT_UNDERSTOOD", "CURSOR_GONE", "PASSING", "FOR_A_PERSON"]
    codes = [code for name in lists for code in getattr(server_codes, name)]
    assert len(codes) == len(set(codes))


def test_there_is_no_other_table():
    source = Path(tailrace.__file__).parent
    tables = re.compile(r"\b(13435|11602|10107)\b")
    assert {file.name for file in source.rglob("*.py") if tables.search(file.read_text())} == {"server_codes.py"}
