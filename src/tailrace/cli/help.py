"""How `--help` looks: verbs in groups by job, and no type behind a flag that takes no value."""

from __future__ import annotations

from typing import Any

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
