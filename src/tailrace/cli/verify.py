"""`tailrace verify`: whether a topic tells the same documents as the collection it came from."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.session import connected, session
from tailrace.errors import ServerUnreachable

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

    from tailrace.capture.recovery.verify import Comparison
    from tailrace.settings import Settings


def verify(
    topic: Annotated[list[str] | None, typer.Option(help="Topics; default those of the stream.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Collections, db.collection; default all in the topics.")
    ] = None,
    uri: Annotated[str | None, typer.Option(help="MongoDB (mongodb.uri).")] = None,
    name: Annotated[str | None, typer.Option(help="Stream whose position is waited for (capture.name).")] = None,
    sink: Annotated[str | None, typer.Option(help="Kafka, as kafka://.. (capture.sink).")] = None,
    format: Annotated[str | None, typer.Option(help="Format of the records (capture.format).")] = None,
    store: Annotated[str | None, typer.Option(help="Position store (capture.position_store).")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the stream to reach the time compared.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rebuild the documents from the records and compare them with the collections at one cluster time.

    Exit code 0 when they are equal, 1 when documents are missing, stale or extra.
    """
    from tailrace.capture.producer.assembly import Capture

    settings = session.settings(
        mongodb__uri=uri,
        capture__name=name,
        capture__sink=sink,
        capture__format=format,
        capture__position_store=store,
    )
    with connected(settings) as client, Capture.open(settings, client) as capture:
        at = _time_to_compare(settings, capture, wait)
        results = capture.verify(at, topics=topic, collections=source)
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2, default=str))
    else:
        Console().print(_table(results))
    raise typer.Exit(0 if all(result.is_equal for result in results) else 1)


def _time_to_compare(settings: Settings, capture: Any, wait: float) -> Timestamp:
    """Take the time now, and wait until the stream has delivered everything up to it."""
    from tailrace.capture.snapshot.reading import watermark

    at = watermark(capture.source.client)
    deadline = time.monotonic() + wait
    while True:
        position = capture.store.load(settings.capture.name)
        if position is None or position.cluster_time >= at:
            return at
        if time.monotonic() > deadline:
            raise ServerUnreachable(
                f"{settings.capture.name} did not reach {at.time}:{at.inc} in {wait:g} s",
                hint="Run `tailrace produce`, or `tailrace produce --until-idle`, and try again.",
            )
        time.sleep(0.1)


def _table(results: list[Comparison]) -> Table:
    table = Table("collection", "documents", "equal", "missing", "stale", "extra", "unsettled", box=None)
    for result in results:
        numbers = (result.documents, result.equal, result.missing, result.stale, result.extra, result.unsettled)
        table.add_row(result.namespace, *(f"{number:,}" for number in numbers))
    return table
