"""`tailrace snapshot`: what is in the collections now, delivered as records marked as read."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.flags import NAMESPACES, STREAM, Flag, with_settings
from tailrace.settings import Settings


@with_settings(
    NAMESPACES,
    *STREAM,
    Flag("workers", "capture.snapshot_workers", "Chunks at once", int),
    Flag("limit", "capture.snapshot_documents_per_second", "Documents per second", float),
)
def snapshot(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="Print the progress as one JSON line per second.")] = False,
) -> None:
    """Read the selected collections once, in chunks, and deliver every document with the time it was read.

    An interrupted snapshot resumes after its last finished chunk. Nothing is written to the source. Changes made in the
    meantime are delivered too, in order, and the position is saved after them, where `tailrace produce` continues.
    """
    from tailrace.capture.producer.control import FirstStep
    from tailrace.cli.producing import run_producer

    run_producer(settings, as_json=as_json, stop_when_idle=True, first_step=FirstStep.SNAPSHOT)
