"""`tailrace position`: see, set, carry over and explain where streams stand."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tailrace.cli.answers import console_for_tables
from tailrace.cli.flags import STORE, AsJson, Streams, with_settings
from tailrace.cli.log import configure_log
from tailrace.cli.token import parse_time, whole_token
from tailrace.cli.units import shown_time
from tailrace.errors import PositionInvalid
from tailrace.settings import Settings

if TYPE_CHECKING:
    from tailrace.capture.positions import Lease, Position, PositionStore

app = typer.Typer(help="Show and set the positions of streams; every change is recorded.", no_args_is_help=True)

Reason = Annotated[str, typer.Option(help="Why; recorded in the history.")]
Wait = Annotated[
    float, typer.Option(help="Wait this many seconds for the lease of a process that may have died.", min=0)
]
_SECONDS_TO_CHANGE = 30.0
_LIST = "Run `tailrace position show` to list them."


@app.command()
@with_settings(STORE)
def show(settings: Settings, names: Streams = None, as_json: AsJson = False) -> None:
    """Show positions: time, token, counts and owner. Exit code 1 if a stream you named has none."""
    with _opened(settings) as opened:
        wanted = names or opened.names()
        found, problems = _looked_up(opened, wanted)
    if as_json:
        shown = [
            {"name": name, "held_by": lease.owner if lease else None, **position.to_json()}
            for name, (position, lease) in found.items()
        ]
        typer.echo(json.dumps(shown, indent=2))
    else:
        for name, (position, lease) in found.items():
            console_for_tables().print(_described(name, position, lease))
    for name, problem in problems.items():
        typer.echo(f"{name} {problem}", err=True)
    raise typer.Exit(1 if problems else 0)


def _looked_up(
    store: PositionStore, names: Sequence[str]
) -> tuple[dict[str, tuple[Position, Lease | None]], dict[str, str]]:
    """Give the positions that there are, and why there is none for the others."""
    found, problems = {}, {}
    for name in names:
        try:
            position = store.load(name)
        except PositionInvalid as error:
            problems[name] = f"cannot be read: {error.message}. {error.hint}"
            continue
        if position is None:
            problems[name] = "has no position"
        else:
            found[name] = position, store.holder(name)
    return found, problems


@app.command("set")
@with_settings(STORE)
def set_position(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="The stream.")],
    reason: Reason,
    token: Annotated[str | None, typer.Option(help="A resume token: its `_data`, or the whole as JSON.")] = None,
    at: Annotated[str | None, typer.Option(help="A time: ISO 8601, epoch seconds, or `seconds,increment`.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the position of a stream that has none.")] = False,
    wait: Wait = 0.0,
) -> None:
    """Move a stopped stream to a token or a time. Events in between are skipped, or delivered again."""
    if (token is None) == (at is None):
        raise typer.BadParameter("give either --token or --at")
    position = _at_token(token) if token is not None else _at_time(at or "")
    with _opened(settings) as opened:
        is_discarded = opened.discard_damaged(name, reason=reason)
        before = opened.load(name)
        if before is None and not create and not is_discarded:
            raise _unknown(opened, name, hint="Check the name, or make a new stream with --create.")
        details = {"to": shown_time(position.cluster_time), "reason": reason}
        with _audited(settings, "position set", name, **details), _changing(opened, name, reason, wait) as lease:
            opened.save(_continuing(position, before), lease, reason=reason)
    typer.echo(f"{name} stands at {shown_time(position.cluster_time)}")


@app.command("delete")
@with_settings(STORE)
def delete_position(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="The stream.")],
    reason: Reason,
    wait: Wait = 0.0,
) -> None:
    """Delete the position of a stopped stream; its history stays. The next run starts from scratch."""
    with _opened(settings) as opened:
        if not opened.discard_damaged(name, reason=reason) and opened.load(name) is None:
            raise _unknown(opened, name)
        with _audited(settings, "position delete", name, reason=reason):
            lease = opened.wait_for_lease(name, _person(), seconds=_SECONDS_TO_CHANGE, timeout=wait, reason=reason)
            opened.delete(lease, reason=reason)
    typer.echo(f"{name} has no position any more")


@app.command("export")
@with_settings(STORE)
def export_positions(
    settings: Settings,
    names: Streams = None,
    output: Annotated[Path | None, typer.Option(help="A file; default standard output.")] = None,
) -> None:
    """Write positions as JSON, for `import` into another store."""
    with _opened(settings) as opened:
        positions = {name: opened.load(name) for name in names or opened.names()}
    missing = [name for name, position in positions.items() if position is None]
    if missing:
        raise PositionInvalid(f"{missing[0]} has no position", hint=_LIST)
    text = json.dumps({name: position.to_json() for name, position in positions.items() if position}, indent=2)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n")


@app.command("import")
@with_settings(STORE)
def import_positions(
    settings: Settings,
    file: Annotated[Path, typer.Argument(help="What `export` wrote.", exists=True, dir_okay=False, allow_dash=True)],
    reason: Reason,
    wait: Wait = 0.0,
) -> None:
    """Set positions to those of an export; refuses to change a running stream."""
    from tailrace.capture.positions import Position

    try:
        forms = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text())
        positions = {name: Position.from_json(form) for name, form in forms.items()}
    except (ValueError, AttributeError) as error:
        raise PositionInvalid(f"{file} is not an export of positions: {error}") from None
    with _opened(settings) as opened:
        for name, position in positions.items():
            details = {"to": shown_time(position.cluster_time), "reason": reason}
            with _audited(settings, "position import", name, **details), _changing(opened, name, reason, wait) as lease:
                opened.save(position, lease, reason=reason)
            typer.echo(f"{name} stands at {shown_time(position.cluster_time)}")


@app.command()
@with_settings(STORE)
def history(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="The stream.")],
    limit: Annotated[int, typer.Option(min=1, help="How many changes, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show who changed a position, when, how and why."""
    with _opened(settings) as opened:
        changes = opened.history(name, limit)
    if as_json:
        typer.echo(json.dumps([change.to_json() for change in changes], indent=2))
        return
    table = Table("when", "who", "what", "why", "epoch", "position", box=None, header_style="bold")
    for change in changes:
        stands = shown_time(change.position.cluster_time) if change.position else "none"
        table.add_row(f"{change.at:%Y-%m-%d %H:%M:%S}Z", change.who, change.what, change.why, str(change.epoch), stands)
    console_for_tables().print(table)


@contextmanager
def _opened(settings: Settings) -> Iterator[PositionStore]:
    from tailrace.capture.positions import open_store

    with open_store(settings.capture.position_store.get_secret_value()) as opened:
        yield opened


@contextmanager
def _changing(store: PositionStore, name: str, reason: str, wait: float) -> Iterator[Lease]:
    """Hold the lease of a stream while it is changed, so that no producer runs meanwhile."""
    lease = store.wait_for_lease(name, _person(), seconds=_SECONDS_TO_CHANGE, timeout=wait, reason=reason)
    try:
        yield lease
    finally:
        store.release(lease, reason=reason)


@contextmanager
def _audited(settings: Settings, action: str, stream: str, **details: str) -> Iterator[None]:
    """Write down what is done to a position, and by whom."""
    from tailrace.audit import Actor, open_audit

    configure_log(settings.log)
    with open_audit(settings) as audit, audit.action(Actor.of_this_process(), action, stream, **details):
        yield


def _person() -> str:
    """Give who changes a position by hand, for its history."""
    from tailrace.capture.positions import this_process

    return f"{getpass.getuser()}@{this_process()}"


def _unknown(store: PositionStore, name: str, *, hint: str | None = None) -> PositionInvalid:
    known = ", ".join(store.names()[:5]) or "none"
    return PositionInvalid(f"no stream is called {name}; the store has: {known}", hint=hint or _LIST)


def _at_token(text: str) -> Position:
    from tailrace.capture.positions import Position
    from tailrace.token import ResumeToken

    token = whole_token(text) if text.startswith("{") else ResumeToken.from_hex(text)
    return Position(token.to_bson(), token.cluster_time)


def _at_time(text: str) -> Position:
    from tailrace.capture.positions import Position

    return Position(None, parse_time(text))


def _continuing(position: Position, before: Position | None) -> Position:
    """Keep what a change of place does not touch: what was delivered, and which stream it is."""
    if before is None:
        return position
    return replace(position, counts=before.counts, fingerprint=before.fingerprint)


def _shown_token_time(token: bytes) -> str:
    from tailrace.token import ResumeToken

    return shown_time(ResumeToken.parse(token).cluster_time)


def _described(name: str, position: Position, lease: Lease | None) -> Table:
    form: dict[str, Any] = position.to_json()
    token = form["token"]
    rows = {
        "stands at": shown_time(position.cluster_time),
        "token": "none: starts at the time" if token is None else str(token.get("_data", token)),
        "delivered": f"{position.counts.events:,} events, {position.counts.bytes:,} bytes, "
        f"{position.counts.dead_letters:,} dead letters",
        "fingerprint": position.fingerprint or "none",
        "saved": f"{position.saved_at:%Y-%m-%d %H:%M:%S}Z by {position.writer}" if position.saved_at else "never",
        "held by": lease.owner if lease else "nobody",
    }
    for shard, own in sorted(form["shards"].items()):
        rows[f"shard {shard}"] = f"{_shown_token_time(position.shards[shard])}  {own.get('_data', own)}"
    table = Table(name, "", box=None, header_style="bold")
    for label, value in rows.items():
        table.add_row(label, value)
    return table
