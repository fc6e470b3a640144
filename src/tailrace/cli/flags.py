"""Flags that verbs share: each is described once, and those that stand for a setting know which.

A verb that is decorated with `with_settings` gets the settings as its first argument, with its flags laid over them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeAlias

import typer

from tailrace.cli.session import session
from tailrace.settings import Settings
from tailrace.settings_types import bounded

P = ParamSpec("P")

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Streams: TypeAlias = Annotated[list[str] | None, typer.Argument(help="Streams; default: all in the store.")]
Topics: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated topics, or /pattern/; without it, read MongoDB directly.", rich_help_panel="Events"
    ),
]
TopicFormat: TypeAlias = Annotated[
    str | None, typer.Option(help="Format of the topics; default: capture.format.", rich_help_panel="Events")
]
Backfill: TypeAlias = Annotated[
    bool,
    typer.Option("--backfill", help="Start with the existing documents.", rich_help_panel="Events"),
]
Resume: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Without a checkpoint, resume from the position recorded in the output.",
        rich_help_panel="Events",
    ),
]
Once: TypeAlias = Annotated[
    bool, typer.Option("--once", help="Process everything available now, then exit.", rich_help_panel="Events")
]
Checkpoint: TypeAlias = Annotated[
    str | None, typer.Option(help="Where to keep the position.", rich_help_panel="Events")
]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that stands for a setting; without it the setting counts."""

    name: str
    key: str
    help: str
    kind: Any = str
    read: Callable[[Any], Any] | None = None
    """Makes the setting's value of what was typed, where that is not the value itself."""
    is_argument: bool = False

    @property
    def parameter(self) -> inspect.Parameter:
        """What the verb's signature says of it."""
        is_switch, text = self.kind is bool, f"{self.help} ({self.key})."
        names = [f"--{self.name.replace('_', '-')}"] if is_switch else []
        asked: Any = (
            typer.Argument(help=text)
            if self.is_argument
            else typer.Option(*names, help=text, rich_help_panel="Settings for this run")
        )
        annotation: Any = Annotated[bool if is_switch else self.kind | None, asked]
        default = False if is_switch else None
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def setting(self, value: Any) -> Any:
        """Give the setting's value for what was typed; None where nothing was."""
        if value is None or value is False or value == []:
            return None
        if self.read is not None:
            return self.read(value)
        return tuple(value) if isinstance(value, list) else value


def with_settings(
    *flags: Flag, fixed: Mapping[str, Any] | None = None
) -> Callable[[Callable[Concatenate[Settings, P], None]], Callable[..., None]]:
    """Give a verb these flags, and the settings under them; `fixed` are settings that this verb decides itself."""

    def decorated(verb: Callable[Concatenate[Settings, P], None]) -> Callable[..., None]:
        @wraps(verb)
        def run(**given: Any) -> None:
            over = {flag.key: flag.setting(given.pop(flag.name)) for flag in flags} | dict(fixed or {})
            verb(session.loaded(over), **given)  # type: ignore[call-arg]

        own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
        added = [flag.parameter for flag in flags]
        keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        run.__signature__ = inspect.Signature([*keyword_only, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in [*own, *added]}
        return run

    return decorated


URI: Final = Flag("uri", "mongodb.uri", "MongoDB URI")
STORE: Final = Flag("store", "capture.position_store", "Position store")
SINK: Final = Flag(
    "sink", "capture.sink", "Where records go: kafka://, file:, stdout:, http(s)://, redis:// or module:Class"
)
FORMAT: Final = Flag(
    "format", "capture.format", "Record format: json, canonical, bson, flat, debezium, cloudevents, avro or jsonschema"
)
STREAM: Final = (URI, Flag("name", "capture.name", "Name of the stream"), SINK, FORMAT, STORE)
"""A stream from MongoDB to a sink."""
NAMESPACES: Final = Flag(
    "namespaces", "capture.namespaces", "db.collection, db or /regex/; default: all", list[str], is_argument=True
)
METRICS_PORT: Final = Flag("metrics_port", "monitor.metrics_port", "Serve Prometheus metrics", int)
REDIS: Final = Flag("redis", "features.redis_url", "Redis with the features")
FOLDER: Final = Flag("folder", "warehouse.folder", "Folder of the tables")


def refuse_huge_numbers(app: typer.Typer) -> None:
    """Let every verb refuse numbers that are not finite or larger than any clock, as settings do."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_bounded_numbers(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            refuse_huge_numbers(group.typer_instance)


def _with_bounded_numbers(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def checked(*arguments: Any, **flags: Any) -> Any:
        for name, value in flags.items():
            try:
                bounded(value)
            except ValueError as error:
                raise typer.BadParameter(f"--{name.replace('_', '-')} {error}") from None
        return verb(*arguments, **flags)

    return checked
