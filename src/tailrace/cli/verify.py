"""`tailrace verify`: whether a topic has the same documents as the collection it came from."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.flags import STREAM, AsJson, with_settings
from tailrace.cli.session import connected
from tailrace.errors import NotCaughtUp
from tailrace.settings import Settings

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

    from tailrace.capture.producer.assembly import Capture
    from tailrace.capture.recovery.verify import Comparison

_SECONDS_TO_START = 10.0
"""How long a producer may take from its start to its lease."""


@with_settings(*STREAM)
def verify(
    settings: Settings,
    topic: Annotated[list[str] | None, typer.Option(help="Topics; default: those of the stream.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Collections, as db.collection; default: all in the topics.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the stream to catch up.")] = 60,
    as_json: AsJson = False,
) -> None:
    """Rebuild the documents from the delivered records and compare them with the collections.

    Both sides are compared as of one cluster time. Exit code 0 if they are equal, 1 if documents are missing, stale or
    extra.
    """
    from tailrace.capture.producer.assembly import Capture

    with connected(settings, for_capture=True) as client, Capture.open(settings, client) as capture:
        capture.readable_sink()
        at = _time_to_compare(settings, capture, topic, wait)
        results = capture.verify(at, topics=topic, collections=source)
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2, default=str))
    else:
        Console().print(_table(results))
    raise typer.Exit(0 if all(result.is_equal for result in results) else 1)


def _time_to_compare(settings: Settings, capture: Capture, topics: list[str] | None, wait: float) -> Timestamp:
    """Take the time now, and wait until the stream has delivered everything up to it, and its snapshot.

    Where nobody produces it, a producer that was started just before gets a moment to take the lease, and no more.
    """
    from tailrace.capture.snapshot.reading import watermark

    at, name = watermark(capture.source.client), settings.capture.name
    begun, is_produced = time.monotonic(), False
    while (missing := _missing(capture, name, at)) is not None:
        is_produced = is_produced or capture.store.holder(name) is not None
        if not is_produced and capture.store.load(name) is None and (topics or capture.topic_names()):
            break  # its position is kept elsewhere, and cannot be waited for
        if time.monotonic() - begun > (wait if is_produced else min(wait, _SECONDS_TO_START)):
            why = f"it did not in {wait:g} s" if is_produced else "no process produces it"
            raise NotCaughtUp(f"the stream {name} has to {missing} first, and {why}")
        time.sleep(0.1)
    return at


def _missing(capture: Capture, name: str, at: Timestamp) -> str | None:
    """What the stream has to do before it can be compared at a time; None when it has done all of it."""
    from tailrace.capture.snapshot.progress import SnapshotProgress

    position = capture.store.load(name)
    if position is None:
        return "deliver something"
    if SnapshotProgress(capture.store.cells, name).unfinished is not None:
        return "finish its snapshot"
    return None if position.cluster_time >= at else f"reach {at.time}:{at.inc}"


def _table(results: list[Comparison]) -> Table:
    table = Table("collection", "documents", "equal", "missing", "stale", "extra", "unsettled", box=None)
    for result in results:
        numbers = (result.documents, result.equal, result.missing, result.stale, result.extra, result.unsettled)
        table.add_row(result.namespace, *(f"{number:,}" for number in numbers))
    return table
