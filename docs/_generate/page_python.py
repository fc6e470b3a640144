"""One page for each package: the names that it exports, with their signatures and docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any

import prose

import tailrace

_NOT_FOR_IMPORT = {"tailrace.cli"}
"""Packages that are programs."""


def paths() -> dict[str, str]:
    """Give the page of each package."""
    return {name: f"reference/python/{name.removeprefix('tailrace.').replace('.', '-')}.md" for name in _names()}


def pages() -> dict[str, str]:
    """Make the pages."""
    return {path: _page(name, importlib.import_module(name)) for name, path in paths().items()}


def _names() -> Iterator[str]:
    yield "tailrace"
    yield "tailrace.errors"
    for found in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if found.ispkg and found.name not in _NOT_FOR_IMPORT:
            yield found.name


def _page(name: str, module: ModuleType) -> str:
    parts = [f"# {name}\n", _documented(module)]
    for each in getattr(module, "__all__", []):
        parts.append(_entry(each, getattr(module, each)))
    return "\n\n".join(parts) + "\n"


def _entry(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return "\n\n".join([f"## {name}", _code(_head(name, value)), _documented(value), *_members(value)])
    if callable(value):
        return "\n\n".join([f"## {name}", _code(f"{name}{_signature(value)}"), _documented(value)])
    return f"## {name}\n\n{_code(f'{name} = {_short(value)}')}"


def _head(name: str, kind: type) -> str:
    if issubclass(kind, Enum):
        return f"class {name}({', '.join(base.__name__ for base in kind.__bases__)})"
    if issubclass(kind, Exception):
        return f"class {name}({kind.__bases__[0].__name__})"
    return f"class {name}{_signature(kind)}"


def _members(kind: type) -> Iterator[str]:
    """Give the fields that say something, then the public methods that the class itself has."""
    if issubclass(kind, Exception):
        code, outcome = getattr(kind, "code", None), getattr(kind, "outcome", None)
        if code:
            yield f"Code `{code}`, outcome `{outcome}`."
    fields = _fields(kind)
    if fields:
        yield prose.table(("field", "type", "meaning"), fields)
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = name if isinstance(member, property) else f"{name}{_signature(function)}"
        yield f"### {kind.__name__}.{name}\n\n{_code(shown)}\n\n{_documented(function)}"


def _fields(kind: type) -> list[tuple[str, ...]]:
    """Give the fields of a value class, and the members of an enumeration, with the text that stands below each."""
    if not (is_dataclass(kind) or issubclass(kind, Enum | tuple)):
        return []
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    rows = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        name, shown = _declared(node)
        if name and not name.startswith("_"):
            told = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            rows.append((f"`{name}`", f"`{shown}`", prose.cell(str(told))))
    return rows


def _declared(node: ast.stmt) -> tuple[str, str]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, ast.unparse(node.annotation)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, ast.unparse(node.value)
    return "", ""


def _documented(thing: Any) -> str:
    return prose.paragraphs(inspect.getdoc(thing) or "")


def _signature(thing: Any) -> str:
    """Give the signature as it is written: annotations without quotes, and without `self`."""
    try:
        shown = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown).replace("(self, ", "(").replace("(self)", "()")


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) < 400 and " at 0x" not in shown else f"<{type(value).__name__}>"
