"""`tailrace watch`: print change events as they happen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.flags import URI, with_settings
from tailrace.cli.session import connected, say_missing
from tailrace.cli.token import parse_time
from tailrace.errors import InvalidResumeToken
from tailrace.settings import Settings

if TYPE_CHECKING:
    from tailrace.driver import Batch

_TOKEN = "A token as JSON, its `_data`, or a file that --save-token wrote."


@with_settings(URI)
def watch(
    settings: Settings,
    namespace: Annotated[str | None, typer.Argument(metavar="NS|DB", help="db.collection, or a database.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Watch the whole cluster.")] = False,
    pipeline: Annotated[str, typer.Option(help="Stages to append, as a JSON array.")] = "[]",
    resume_after: Annotated[str | None, typer.Option(help=_TOKEN)] = None,
    start_after: Annotated[str | None, typer.Option(help=f"{_TOKEN} Works after an invalidate too.")] = None,
    start_at: Annotated[
        str | None, typer.Option(help="ISO 8601, epoch seconds, or a cluster time `seconds,increment`.")
    ] = None,
    full_document: Annotated[str | None, typer.Option(help="updateLookup, whenAvailable or required.")] = None,
    full_document_before_change: Annotated[str | None, typer.Option(help="whenAvailable or required.")] = None,
    show_expanded_events: Annotated[bool, typer.Option("--show-expanded-events", help="DDL events too (6.0).")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Exit after this many events.")] = None,
    save_token: Annotated[Path | None, typer.Option(help="Save the newest resume token to this file.")] = None,
    canonical: Annotated[bool, typer.Option("--canonical", help="Canonical Extended JSON: no type is lost.")] = False,
    resume_for: Annotated[float, typer.Option(min=0, help="Seconds to keep retrying during an outage.")] = 60,
) -> None:
    """Print change events: formatted on a terminal, one JSON document per line in a pipe."""
    from pymongo.errors import OperationFailure

    from tailrace.capture.source.documentdb import translated
    from tailrace.capture.source.source import read_pipeline
    from tailrace.driver import watch as open_stream
    from tailrace.driver.cosmos import cosmos_event, cosmos_watch
    from tailrace.families import Family, check_documentdb, family_of
    from tailrace.policy.configured import policy_of

    if (namespace is None) != everything:
        raise typer.BadParameter("name a collection (db.collection) or a database, or say --all")
    if namespace is not None and not all(namespace.split(".", 1)):
        raise typer.BadParameter(f"{namespace!r} lacks a name before or after the dot; write db.collection or db")
    options = {
        "resume_after": _read_token(resume_after),
        "start_after": _read_token(start_after),
        "start_at_operation_time": None if start_at is None else parse_time(start_at),
        "full_document": full_document,
        "full_document_before_change": full_document_before_change,
        "show_expanded_events": show_expanded_events or None,
        "resume_for": timedelta(seconds=resume_for) if resume_for else None,
    }
    stages = read_pipeline(pipeline, "--pipeline")
    policy = policy_of(settings, stages)
    show = _printer(canonical)
    with connected(settings) as client:
        database, _, collection = (namespace or "").partition(".")
        target: Any = client if everything else client[database]
        target = target[collection] if collection else target
        as_event: Callable[[bytes], bytes] = policy.event
        family = family_of(client, settings.mongodb.family)
        if family is Family.DOCUMENTDB:
            check_documentdb(client, [namespace] if namespace else [], before_change=full_document_before_change)
        if family is Family.COSMOSDB:
            stages, options = cosmos_watch(target, stages, options)
            marker = settings.mongodb.soft_delete_field
            as_event = lambda event: policy.event(cosmos_event(event, marker))  # noqa: E731
        try:
            with open_stream(target, stages, **options) as stream:
                say_missing(client, [namespace] if namespace else [])
                for events, token in _up_to(count, stream.batches()):
                    show([as_event(event) for event in events])
                    # Only what was printed counts as seen.
                    if save_token is not None and token is not None:
                        _save(token, save_token)
        except OperationFailure as error:
            if family is not Family.DOCUMENTDB:
                raise
            raise translated(error) from error


def _up_to(count: int | None, batches: Iterable[Batch]) -> Iterator[tuple[list[bytes], bytes | None]]:
    """Give batches with the token after each, ending with the event that makes the count full."""
    from tailrace.driver import token_of

    left = count
    for batch in batches:
        events = list(batch.events)
        if left is not None and len(events) >= left:
            yield events[:left], token_of(events[left - 1])
            return
        left = None if left is None else left - len(events)
        yield events, batch.token


def _printer(canonical: bool) -> Callable[[list[bytes]], None]:
    from rich.console import Console

    from tailrace.raw.display import text_for_display

    console = Console()

    def show(events: list[bytes]) -> None:
        for event in events:
            text = text_for_display(event, canonical=canonical)
            if console.is_terminal:
                console.print_json(text)
            else:
                sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    return show


def _read_token(text: str | None) -> dict[str, Any] | None:
    """Read a token from the command line or, when there is such a file, from that file."""
    from bson import json_util

    if text is None:
        return None
    try:
        written = text if text.startswith("{") or not Path(text).is_file() else Path(text).read_text()
        token = json_util.loads(written) if written.lstrip().startswith("{") else {"_data": written.strip()}
    except (ValueError, TypeError) as error:
        raise InvalidResumeToken(f"the token is not JSON: {error}", server_code=9) from None
    return dict(token)


def _save(token: bytes, path: Path) -> None:
    """Replace the file as a whole: whoever reads it, also after a crash, sees an old token or a new one."""
    import os

    import bson
    from bson import json_util

    draft = path.with_name(f"{path.name}.new")
    with draft.open("w") as file:
        file.write(json_util.dumps(bson.decode(token)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
