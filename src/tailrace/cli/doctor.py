"""`tailrace doctor`: whether everything that is configured is there and can be used."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.text import Text

from tailrace.cli.failures import error_for
from tailrace.cli.flags import STREAM, AsJson, with_settings
from tailrace.settings import Settings

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("-", "dim")}


@with_settings(*STREAM)
def doctor(settings: Settings, as_json: AsJson = False) -> None:
    """Check settings, extras, MongoDB, privileges, the oplog window, the position store and the sink.

    It changes nothing. Exit code 0 if everything is fine, 1 on a warning, 2 if something cannot work.
    """
    from tailrace.diagnosis import Level, examine

    findings = []
    console = Console()
    for finding in examine(settings, error_for):
        findings.append(finding)
        if not as_json:
            mark, colour = _MARKS[finding.level]
            console.print(Text(f"{mark} {finding.check:<15} {finding.found}", colour), soft_wrap=True)
            if finding.advice:
                console.print(Text(f"{'':<18}{finding.advice}"), soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([finding.to_json() for finding in findings], indent=2))
    levels = {finding.level for finding in findings}
    raise typer.Exit(2 if Level.FAILED in levels else 1 if Level.WARNING in levels else 0)
