"""`tailrace produce`: a stream into a sink, for as long as it is wanted."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.session import session


def produce(
    namespaces: Annotated[
        list[str] | None, typer.Argument(help="db.collection, db or /regex/; none is all (capture.namespaces).")
    ] = None,
    uri: Annotated[str | None, typer.Option(help="MongoDB (mongodb.uri).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the stream (capture.name).")] = None,
    source: Annotated[str | None, typer.Option(help="change-stream or oplog (capture.source).")] = None,
    sink: Annotated[str | None, typer.Option(help="kafka://..., file:..., webhook, redis (capture.sink).")] = None,
    format: Annotated[str | None, typer.Option(help="json, canonical, bson, flat, debezium (capture.format).")] = None,
    store: Annotated[str | None, typer.Option(help="Position store (capture.position_store).")] = None,
    delivery: Annotated[str | None, typer.Option(help="at-least-once or exactly-once (capture.delivery).")] = None,
    slice: Annotated[str | None, typer.Option("--slice", help="Part of them, like 2/4 (capture.slice).")] = None,
    start: Annotated[str | None, typer.Option(help="snapshot or now (capture.start).")] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything up to now was delivered.")
    ] = False,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics (monitor.metrics_port).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON line a second.")] = False,
) -> None:
    """Deliver every change of the chosen collections, from the stored position on.

    Without a position it begins with a snapshot. Ctrl-C and SIGTERM end it after what was read is delivered and
    the position is saved; killed in any other way, it goes on where it was.
    """
    from tailrace.cli.producing import run_producer

    settings = session.settings(
        mongodb__uri=uri,
        capture__namespaces=tuple(namespaces) if namespaces else None,
        capture__name=name,
        capture__source=source,
        capture__sink=sink,
        capture__format=format,
        capture__position_store=store,
        capture__delivery=delivery,
        capture__slice=slice,
        capture__start=start,
        monitor__metrics_port=metrics_port,
    )
    run_producer(settings, as_json=as_json, stop_when_idle=until_idle, metrics_port=settings.monitor.metrics_port)
