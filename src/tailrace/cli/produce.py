"""`tailrace produce`: a stream into a sink, for as long as it is wanted."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.flags import METRICS_PORT, NAMESPACES, STREAM, Flag, with_settings
from tailrace.settings import Settings


@with_settings(
    NAMESPACES,
    *STREAM,
    METRICS_PORT,
    Flag("source", "capture.source", "change-stream or oplog"),
    Flag("delivery", "capture.delivery", "at-least-once or exactly-once"),
    Flag("slice", "capture.slice", "Part of them, like 2/4"),
    Flag("start", "capture.start", "snapshot or now"),
)
def produce(
    settings: Settings,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything up to now was delivered.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON line a second.")] = False,
) -> None:
    """Deliver every change of the chosen collections, from the stored position on.

    Without a position it begins with a snapshot. Ctrl-C and SIGTERM end it after what was read is delivered and
    the position is saved; killed in any other way, it goes on where it was.
    """
    from tailrace.cli.producing import run_producer

    run_producer(settings, as_json=as_json, stop_when_idle=until_idle, metrics_port=settings.monitor.metrics_port)
