"""`tailrace settings`: every setting, with its value now, its default and its meaning."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

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
        default = "" if row["value"] == row["default"] else f" Default: {row['default']}."
        table.add_row(row["key"], str(row["value"]), f"{row['meaning']}{default}")
    Console().print(table)


def _value(loaded: Settings, key: str) -> Any:
    value: Any = loaded
    for part in key.split("."):
        value = getattr(value, part)
    return shown(value, part)
