"""How `--help` looks: verbs in groups by job, paragraphs as wide as the terminal, flags that are never cut short."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from rich.table import Table
from rich.text import Text
from typer import rich_utils
from typer.core import TyperOption

STREAMS = "Streams: watch changes"
CAPTURE = "Capture: deliver changes to Kafka, files, webhooks"
PIPELINES = "Pipelines: features in Redis, tables in Iceberg or Delta"
OPERATE = "Operate: set up, inspect, repair"
TRY = "Try it"


def shorten_types() -> None:
    """Let the help show `--all`, not `--all <bool>`, and `<int>`, not `<int range>`; typer has no setting for it."""
    shown: Any = TyperOption.display_type_rich

    def display_type_rich(self: TyperOption, ctx: Any) -> str | None:
        value: str | None = shown(self, ctx)
        return "" if self.is_flag or value is None else value.replace(" range", "")

    TyperOption.display_type_rich = display_type_rich  # type: ignore[method-assign]


class _WholeFlags(Table):
    """A table that never cuts a flag short, however narrow the terminal: nobody could type it."""

    def add_row(self, *cells: Any, **how: Any) -> None:
        super().add_row(*cells, **how)
        for column, cell in zip(self.columns, cells, strict=False):
            column.overflow = "fold"
            if isinstance(cell, Text) and cell.plain.startswith("--"):
                column.no_wrap = True


def show_whole_flags() -> None:
    """Let the help show `--full-document-before-change`, not `--full-document-befor…`."""
    rich_utils.Table = _WholeFlags  # type: ignore[attr-defined]


def flowing(text: str) -> str:
    """Let paragraphs be as wide as the terminal, not as the source code."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def let_paragraphs_flow(app: typer.Typer) -> None:
    """Let the help of every verb flow."""
    for command in app.registered_commands:
        command.help = flowing(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.typer_instance.info.help = flowing(group.typer_instance.info.help or "")
            let_paragraphs_flow(group.typer_instance)
