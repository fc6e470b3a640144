"""`tailrace recover`: from lost history back to a sink that equals the source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tailrace.cli.flags import STREAM, AsJson, with_settings
from tailrace.cli.session import connected
from tailrace.cli.units import shown_time
from tailrace.settings import Settings

if TYPE_CHECKING:
    from pymongo import MongoClient

    from tailrace.capture.recovery.recovery import Forecast


@with_settings(*STREAM, fixed={"capture.recover": True})
def recover(
    settings: Settings,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, without doing it.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Recover even though no history is known to be lost.")
    ] = False,
    from_now: Annotated[
        bool,
        typer.Option("--from-now", help="Skip recovery and start from now. The gap stays in the ledger as accepted."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Close the open gap: take a snapshot, deliver the deletes made in the gap, then catch up.

    The gap is recorded in the ledger first (`tailrace gaps`), so an interrupted recovery can be continued.
    """
    from tailrace.capture.producer.control import FirstStep
    from tailrace.cli.producing import run_producer

    if dry_run:
        with connected(settings, for_capture=True) as client:
            _show(forecast_of(settings, client), as_json)
        return
    step = FirstStep.START_NOW if from_now else FirstStep.RECOVER if anyway else FirstStep.GO_ON
    run_producer(settings, as_json=as_json, stop_when_idle=True, first_step=step)


def forecast_of(settings: Settings, client: MongoClient[Any]) -> Forecast:
    """Find out what a recovery would do, with a store of our own beside the one of a producer that runs."""
    from tailrace.capture.producer.assembly import Capture

    with Capture.open(settings, client) as capture:
        return capture.recovery().forecast(capture.store.load(settings.capture.name))


def _show(forecast: Forecast, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(forecast.to_json(), indent=2))
        return
    begins, lost = forecast.oplog_begins, forecast.is_lost
    lines: list[Any] = [
        f"position       {shown_time(forecast.position.cluster_time) if forecast.position else 'none'}",
        f"oplog begins   {shown_time(begins) if begins else 'not known: it needs the role read on local'}",
        f"open gap       {forecast.gap.number if forecast.gap else 'none'}",
        f"history        {'lost' if lost else 'not known to be lost: the stream can go on where it is'}",
        f"would read     {sum(forecast.documents.values()):,} documents of {len(forecast.documents)} collections",
        f"deletes from   {forecast.inventory}",
    ]
    if forecast.refusal is not None:
        lines += [f"refused        {forecast.refusal}", f"instead        {forecast.refusal.hint}"]
    Console(highlight=False).print("\n".join(lines))
