"""How `--help` looks: verbs in groups by job, paragraphs as wide as the terminal, and no type after a switch."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperOption

STREAMS = "Streams: watch changes"
CAPTURE = "Capture: deliver changes to Kafka, files, webhooks"
PIPELINES = "Pipelines: features in Redis, tables in Iceberg"
OPERATE = "Operate: set up, look, repair"
TRY = "Try it"


def hide_types_of_switches() -> None:
    """Let the help show `--all`, not `--all <bool>`; the library has no setting for it."""
    shown: Any = TyperOption.display_type_rich

    def display_type_rich(self: TyperOption, ctx: Any) -> str | None:
        value: str | None = shown(self, ctx)
        return "" if self.is_flag else value

    TyperOption.display_type_rich = display_type_rich  # type: ignore[method-assign]


def flowing(text: str) -> str:
    """Let paragraphs be as wide as the terminal, not as the source code."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def let_paragraphs_flow(app: typer.Typer) -> None:
    """Let the help of every verb flow."""
    for command in app.registered_commands:
        command.help = flowing(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            let_paragraphs_flow(group.typer_instance)
