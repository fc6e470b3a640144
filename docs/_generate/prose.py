"""From docstrings and help texts to Markdown."""

from __future__ import annotations

import re


def inline(text: str) -> str:
    """Make one line of a help text: Rich's markup becomes Markdown's, and no character is taken for a tag."""
    return _escaped(re.sub(r"\[/?bold\]", "**", " ".join(text.split())))


def cell(text: str) -> str:
    """Make the same for a cell of a table, whose columns a bar ends, except in code."""
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in _parts(inline(text)))


def paragraphs(text: str) -> str:
    """Make the Markdown of a docstring; what it indents stays code."""
    lines = [line if line.startswith("    ") else _escaped(line) for line in text.splitlines()]
    return re.sub(r"\[/?bold\]", "**", re.sub(r"::$", ":", "\n".join(lines), flags=re.MULTILINE))


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Make a table; its cells are Markdown already."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _escaped(line: str) -> str:
    """Keep `<name>` outside of code from being read as HTML, and a star or underscore as emphasis."""
    return "".join(part if part.startswith("`") else re.sub(r"<(?=[\w/!])", "&lt;", part) for part in _parts(line))


def _parts(line: str) -> list[str]:
    """Split a line into code, which begins with a backquote, and what is between."""
    return re.split(r"(`[^`]*`)", line)
