"""Whatever optional module the product imports, the error of whoever lacks it names the extra that brings it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import tailrace
from tailrace.extras import EXTRA_OF

ROOT = Path(__file__).parents[2]
_OURS_OR_ALWAYS_THERE = {"tailrace", "tailrace_kernel", "pydantic"}
"""pydantic comes with pydantic-settings."""


def imported() -> set[str]:
    """The top-level names of all modules that the product imports."""
    names: set[str] = set()
    for path in Path(tailrace.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names


def of_the_core() -> set[str]:
    """The modules that every installation has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=!~;\[ ]", each)[0].lower().replace("_", "-") for each in project["dependencies"]}
    found = packages_distributions().items()
    return {name for name, owners in found if wanted & {owner.lower().replace("_", "-") for owner in owners}}


def test_every_optional_module_has_its_extra() -> None:
    unknown = imported() - sys.stdlib_module_names - of_the_core() - EXTRA_OF.keys() - _OURS_OR_ALWAYS_THERE
    assert not unknown
