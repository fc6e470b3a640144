"""The one table of MongoDB's error codes."""

from __future__ import annotations

import ast
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


def _literal_codes(node: ast.AST) -> set[int]:
    """The numbers of a literal, or of a literal set or tuple of them."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    items = node.elts if isinstance(node, ast.Set | ast.Tuple | ast.List) else [node]
    found = {item.value for item in items if isinstance(item, ast.Constant) and type(item.value) is int}
    return found if len(found) == len(items) else set()


def _is_code(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("code", "server_code")


def codes_written_in(text: str) -> set[int]:
    """The codes a module writes as numbers where it compares, or makes a set of them."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and _is_code(node.left):
            found |= _literal_codes(node.comparators[0])
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            codes = _literal_codes(node.value)
            if len(codes) > 1 and codes <= server_codes.NAMES.keys():
                found |= codes
    return found & server_codes.NAMES.keys()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("if error.code == 286: pass", {286}),
        ("found = error.server_code in (13, 18)", {13, 18}),
        ("STALE = frozenset({63, 150})", {63, 150}),
        ("if error.code >= 500: pass", set()),
        ("SIZES = (1, 1024)", set()),
    ],
)
def test_codes_are_found(text, codes):
    assert codes_written_in(text) == codes


def test_there_is_no_other_table():
    source = Path(tailrace.__file__).parent
    tables = re.compile(r"\b(13435|11602|10107|13388)\b")
    for file in sorted(source.rglob("*.py")):
        if file.name != "server_codes.py":
            assert not tables.search(file.read_text()), file
            assert not codes_written_in(file.read_text()), file
