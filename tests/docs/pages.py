"""The documentation as tests read it: pages and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language and its text."""

    language: str
    text: str


def read(page: str) -> str:
    """Give the text of a page, such as `concepts/merge.md`."""
    return (DOCS / page).read_text()


def blocks(page: str) -> list[Block]:
    """Give the fenced blocks of a page, in order."""
    return [Block(language, text) for language, text in _FENCE.findall(read(page))]


def all_pages() -> list[Path]:
    """List the pages that are written, and those of the repository and of its examples."""
    others = ("README.md", "CONTRIBUTING.md")
    return [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in others), *sorted(ROOT.glob("examples/*/README.md"))]
