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
    Flag("slice", "capture.slice", "Share of the documents, such as 2/4"),
    Flag("start", "capture.start", "snapshot or now"),
)
def produce(
    settings: Settings,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit once everything up to now is delivered.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON line per second.")] = False,
) -> None:
    """Deliver every change of the selected collections, starting at the stored position.

    Without a stored position it starts with a snapshot. On Ctrl-C or SIGTERM it delivers what it has read, saves the
    position and exits. If it is killed, the next run resumes at the last saved position.
    """
    from tailrace.cli.producing import run_producer

    run_producer(settings, as_json=as_json, stop_when_idle=until_idle, metrics_port=settings.monitor.metrics_port)
