"""`tailrace snapshot`: what is in the collections now, delivered as records marked as read."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.session import session


def snapshot(
    namespaces: Annotated[
        list[str] | None, typer.Argument(help="db.collection, db or /regex/; none is all (capture.namespaces).")
    ] = None,
    uri: Annotated[str | None, typer.Option(help="MongoDB (mongodb.uri).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the stream (capture.name).")] = None,
    sink: Annotated[str | None, typer.Option(help="Where records go (capture.sink).")] = None,
    format: Annotated[str | None, typer.Option(help="Format of records (capture.format).")] = None,
    store: Annotated[str | None, typer.Option(help="Position store (capture.position_store).")] = None,
    workers: Annotated[int | None, typer.Option(help="Chunks at once (capture.snapshot_workers).")] = None,
    limit: Annotated[
        float | None, typer.Option(help="Documents per second (capture.snapshot_documents_per_second).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the progress as one JSON line a second.")] = False,
) -> None:
    """Read the chosen collections once, chunk by chunk, and deliver every document with the time it was read at.

    An interrupted snapshot goes on at its last finished chunk. Nothing is written to the source. Changes made while it
    runs are delivered too, in their order, and the position is where they end: `tailrace produce` goes on there.
    """
    from tailrace.capture.producer.options import FirstStep
    from tailrace.cli.producing import run_producer

    settings = session.settings(
        mongodb__uri=uri,
        capture__namespaces=tuple(namespaces) if namespaces else None,
        capture__name=name,
        capture__sink=sink,
        capture__format=format,
        capture__position_store=store,
        capture__snapshot_workers=workers,
        capture__snapshot_documents_per_second=limit,
    )
    run_producer(settings, as_json=as_json, stop_when_idle=True, first_step=FirstStep.SNAPSHOT)
