"""`tailrace gaps`: the stretches of history that streams did not see, and what became of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.flags import STORE, AsJson, Streams, with_settings
from tailrace.cli.units import shown_time
from tailrace.settings import Settings

if TYPE_CHECKING:
    from tailrace.capture.recovery.gaps import Gap

_COLOURS = {"open": "red", "recovering": "yellow", "closed": "green", "accepted": "yellow"}


@with_settings(STORE)
def gaps(settings: Settings, names: Streams = None, as_json: AsJson = False) -> None:
    """List all gaps: when and why each was found, its start and end, and whether it is closed.

    Exit code 1 when a gap is open or is being recovered, else 0.
    """
    from tailrace.capture.positions import open_store
    from tailrace.capture.recovery.gaps import GapLedger

    with open_store(settings.capture.position_store.get_secret_value()) as opened:
        wanted = names or GapLedger.streams(opened.cells)
        found = [gap for name in wanted for gap in GapLedger(opened.cells, name).all()]
    if as_json:
        typer.echo(json.dumps([gap.to_json() for gap in found], indent=2))
    else:
        Console().print(_table(found) if found else "no gaps")
    raise typer.Exit(1 if any(gap.is_open for gap in found) else 0)


def _table(found: list[Gap]) -> Table:
    table = Table("stream", "gap", "state", "reason", "last good", "first known", "read again", "deletes", box=None)
    for gap in found:
        state = f"[{_COLOURS[gap.state.value]}]{gap.state.value}[/]"
        times = shown_time(gap.last_good), shown_time(gap.first_known)
        table.add_row(gap.stream, str(gap.number), state, gap.reason, *times, str(gap.records), str(gap.deletes))
    return table
