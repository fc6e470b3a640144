"""`tailrace settings`: every setting, with its value now, its default and its meaning."""

from __future__ import annotations

import json
from typing import Any

import typer
from pydantic import BaseModel
from rich.table import Table

from tailrace.cli import answers
from tailrace.cli.flags import AsJson
from tailrace.cli.session import session
from tailrace.masking import shown
from tailrace.settings import Settings, describe


def settings(as_json: AsJson = False) -> None:
    """List every setting with its value, default and meaning. Secrets are masked."""
    loaded = session.settings()
    rows = [
        {"key": key, "type": kind, "value": _value(loaded, key), "default": default, "meaning": meaning}
        for key, kind, default, meaning in describe()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    table = Table(box=None, header_style="bold")
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("meaning")
    for row in rows:
        default = "" if row["value"] == row["default"] else f" Default: {answers.shown(row['default'])}."
        table.add_row(row["key"], answers.shown(row["value"]), f"{row['meaning']}{default}")
    console = answers.console_for_tables()
    console.print(table, soft_wrap=not console.is_terminal)


def _value(loaded: Settings, key: str) -> Any:
    value: Any = loaded
    for part in key.split("."):
        value = getattr(value, part)
    if isinstance(value, tuple):  # of tables, such as the rules of the policy
        value = [each.model_dump(exclude_none=True) if isinstance(each, BaseModel) else each for each in value]
    return shown(value, part)
