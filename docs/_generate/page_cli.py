"""The page of the command line: every verb with its arguments and flags, as `--help` shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import prose
import typer

_COMPLETION = {"install_completion", "show_completion"}


def page() -> str:
    """Make the page."""
    from tailrace.cli.app import app

    program: Any = typer.main.get_command(app)
    parts = [
        "# Command line\n",
        "Made of the program itself: this is what `tailrace --help` and `tailrace VERB --help` show.\n",
        prose.paragraphs(program.help),
        "These flags may stand before the verb or behind it: `tailrace check --config other.toml`.\n",
        _flags(program),
    ]
    for name, command in sorted(program.commands.items()):
        parts += _verb(f"tailrace {name}", command, level=2)
    return "\n".join(parts)


def _verb(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"\n{'#' * level} {name}\n"
    children = getattr(command, "commands", None)
    if children is None:
        yield f"    {_usage(name, command)}\n"
    yield prose.paragraphs(command.help or "")
    yield "\n" + _flags(command)
    for child, inner in sorted((children or {}).items()):
        yield from _verb(f"{name} {child}", inner, level + 1)


def _usage(name: str, command: Any) -> str:
    words = [name]
    for parameter in _shown(command):
        if not parameter.opts[0].startswith("-"):
            shown = parameter.metavar or parameter.name.upper()
            shown += "..." if parameter.nargs == -1 else ""
            words.append(shown if parameter.required else f"[{shown}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {parameter.name.upper()}")
    return " ".join([*words, "[flags]"] if len(_shown(command)) else words)


def _flags(command: Any) -> str:
    rows = [
        (
            f"`{', '.join([*parameter.opts, *parameter.secondary_opts])}`",
            prose.cell(parameter.help or ""),
            _default(parameter),
        )
        for parameter in _shown(command)
    ]
    return prose.table(("flag or argument", "meaning", "default"), rows) + "\n" if rows else ""


def _shown(command: Any) -> list[Any]:
    return [each for each in command.params if not each.hidden and each.name not in _COMPLETION]


def _default(parameter: Any) -> str:
    if parameter.default is None or parameter.default is False or callable(parameter.default):
        return "required" if parameter.required else ""
    return "" if parameter.required else f"`{parameter.default}`"
