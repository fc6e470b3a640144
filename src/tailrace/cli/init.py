"""`tailrace init`: look at the servers and write a commented settings file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.session import connected, session
from tailrace.errors import FileUnusable, MissingExtra
from tailrace.settings import DEFAULT_FILE, Settings

if TYPE_CHECKING:
    from pymongo import MongoClient

_INTERNAL = {"admin", "config", "local"}
_TEMPLATE = """\
# Settings of tailrace. `tailrace settings` lists every key; `tailrace doctor` checks these.

[mongodb]
# A replica set, or a mongos. A password is better kept in a file: uri_file = "/run/secrets/mongodb-uri"
uri = {uri}

[capture]
# The stream's name; its position and its lease are kept under it. One process of a name delivers at a time.
name = {name}
# What is captured: db.collection, db or /regex/; an empty list is everything.
# Found: {found}
namespaces = {namespaces}
# Where records go: kafka://host:9092, file:events.jsonl, stdout:, https://..., redis://..., or module:Class.
sink = {sink}
# json, canonical, bson, flat, debezium, cloudevents, avro, jsonschema or module:function.
format = "json"
# Where positions are kept: file:folder for one machine; postgresql://, mongodb://, kafka:// or redis:// for several.
position_store = {store}
# Where a stream without a position begins: "snapshot" delivers every document first, "now" does not.
start = {start}

[monitor]
# Prometheus metrics and health of `tailrace produce`; remove the line for no endpoint.
metrics_port = 9464
"""


def init(
    uri: Annotated[str | None, typer.Option(help="MongoDB (mongodb.uri).")] = None,
    namespace: Annotated[list[str] | None, typer.Option(help="What to capture; repeat for several.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the stream.")] = None,
    sink: Annotated[str | None, typer.Option(help="Where records go.")] = None,
    store: Annotated[str | None, typer.Option(help="Position store.")] = None,
    start: Annotated[str | None, typer.Option(help="snapshot or now.")] = None,
    output: Annotated[Path, typer.Option(help="The file to write.")] = DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; use flags and defaults.")] = False,
) -> None:
    """Inspect MongoDB, ask for the rest, and write a commented tailrace.toml.

    It asks nothing without a terminal or with --yes. The settings are validated before the file is written.
    """
    if output.exists() and not force:
        raise FileUnusable(f"{output} is there already", hint="Name another with --output, or replace it with --force.")
    ask = _Asking(sys.stdin.isatty() and not yes)
    chosen_uri = ask("MongoDB", uri, session.settings().mongodb.uri.get_secret_value())
    with connected(session.settings(mongodb__uri=chosen_uri)) as client:
        found = _collections(client)
    typer.echo(f"collections found: {', '.join(found[:8])}" if found else "no collections found", err=True)
    listed = ask("Capture, with commas; nothing is everything", ",".join(namespace or ()) or None, "")
    values = {
        "uri": chosen_uri,
        "namespaces": [part.strip() for part in listed.split(",") if part.strip()],
        "name": ask("Name of the stream", name, "default"),
        "sink": ask("Sink", sink, "kafka://127.0.0.1:9092"),
        "store": ask("Position store", store, "file:.tailrace/positions"),
        "start": ask("Begin with a snapshot or now", start, "snapshot"),
    }
    settings = session.settings(
        mongodb__uri=chosen_uri,
        capture__namespaces=tuple(values["namespaces"]),
        capture__name=values["name"],
        capture__sink=values["sink"],
        capture__position_store=values["store"],
        capture__start=values["start"],
    )
    _refuse_what_cannot_run(settings)
    written = {key: json.dumps(value) for key, value in values.items()}
    text = _TEMPLATE.format(**written, found=", ".join(found[:20]) or "no collections yet")
    try:
        output.write_text(text)
    except OSError as error:
        raise FileUnusable(f"cannot write {output}: {error.strerror}", hint="Name another with --output.") from None
    typer.echo(f"wrote {output}; check it with `tailrace doctor`, then run `tailrace produce`", err=True)


def _refuse_what_cannot_run(settings: Settings) -> None:
    """Raise what `produce` would raise for these settings; an extra may still be installed, and is only mentioned."""
    from tailrace.capture.producer.parts import checks_of

    missing = set()
    for check in checks_of(settings).values():
        try:
            check()
        except MissingExtra as error:
            missing.add(error.hint)
    for hint in sorted(missing):
        typer.echo(f"an extra is missing for these settings. {hint}", err=True)


class _Asking:
    """Asks a person, or takes the default where nobody can answer; a flag that was given is not asked for."""

    def __init__(self, is_asking: bool) -> None:
        self._is_asking = is_asking

    def __call__(self, question: str, given: str | None, default: str) -> str:
        if given is not None or not self._is_asking:
            return default if given is None else given
        return str(typer.prompt(question, default=default, show_default=bool(default), err=True))


def _collections(client: MongoClient[Any]) -> list[str]:
    return sorted(
        f"{database}.{name}"
        for database in client.list_database_names()
        if database not in _INTERNAL
        for name in client[database].list_collection_names(filter={"type": "collection"})
        if not name.startswith("system.")
    )
