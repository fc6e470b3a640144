"""`tailrace schema`: the columns of mirrors, and what drifted."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.flags import FOLDER, AsJson, with_settings
from tailrace.cli.warehouse import Namespaces, table_states
from tailrace.settings import Settings

if TYPE_CHECKING:
    from tailrace.warehouse import TableState

app = typer.Typer(help="Show the columns of the warehouse's tables.", no_args_is_help=True)


@app.callback()
def _verbs() -> None:
    """Let `show` be a word of its own, although it is the only one."""


@app.command()
@with_settings(FOLDER)
def show(
    settings: Settings,
    namespaces: Namespaces = None,
    as_json: AsJson = False,
) -> None:
    """Show the columns of mirrors, and all schema drift: what was found, when, how often, and how it was handled."""
    from tailrace.capture.source.namespaces import Namespaces as Selection

    selection = Selection.parse(namespaces or ())
    with table_states(settings) as states:
        chosen = [one for one in states if one.kind == "mirror" and selection.contains_event(one.namespace)]
    if as_json:
        typer.echo(json.dumps([_form(state) for state in chosen], indent=2))
        return
    console = Console()
    for state in chosen:
        console.print(f"[bold]{state.namespace}[/] in {state.name}, contract {_contract(state)}")
        console.print(_columns(state))
        console.print(_drift(state) if state.drift else "no drift")
    if not chosen:
        console.print("no mirrors")


def _contract(state: TableState) -> str:
    return state.properties.get("tailrace.contract", "unknown")


def _form(state: TableState) -> dict[str, object]:
    return {
        "namespace": state.namespace,
        "table": state.name,
        "contract": _contract(state),
        "columns": [asdict(column) for column in state.columns],
        "drift": [asdict(one) for one in state.drift],
    }


def _columns(state: TableState) -> Table:
    table = Table("column", "type", box=None)
    for column in state.columns:
        table.add_row(column.name, column.type)
    return table


def _drift(state: TableState) -> Table:
    table = Table("field", "change", "found", "column now", "times", "first seen", "last seen", box=None)
    for one in state.drift:
        table.add_row(one.field, one.change, one.found, one.column, str(one.count), one.first_seen, one.last_seen)
    return table
