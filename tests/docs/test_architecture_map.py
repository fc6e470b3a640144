"""The map in docs/architecture.md names files and functions that exist, and every package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tailrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
HOPS = re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", PAGE, re.MULTILINE)


def names_in(file: Path) -> set[str]:
    """Classes and functions of a module, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


@pytest.mark.parametrize(("file", "name"), HOPS, ids=[f"{file}:{name}" for file, name in HOPS])
def test_each_hop_exists(file: str, name: str) -> None:
    assert name in names_in(SOURCE / file)


def test_each_file_that_is_named_exists() -> None:
    for file in re.findall(r"`([a-z_/]+\.py)`", PAGE):
        assert (SOURCE / file).exists() or (ROOT / file).exists(), file


def test_every_package_stands_in_the_map() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`([a-z]+)/`", PAGE))
