"""What the flags before the verb said, and the settings and connections that verbs make from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from pymongo import MongoClient
from pymongo.errors import ConfigurationError, InvalidURI, OperationFailure, ServerSelectionTimeoutError

from tailrace.deployment import Deployment, missing_namespaces
from tailrace.errors import ServerUnreachable, SettingsError
from tailrace.extras import require_client
from tailrace.families import family_of, refuse_engine
from tailrace.masking import masked, shown_failure
from tailrace.settings import Settings


class Session:
    """The global flags of one command line."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the last command line."""
        self.config: Path | None = None
        self.debug = False
        self.log_level: str | None = None

    def settings(self, **flags: Any) -> Settings:
        """The settings with this verb's flags on top; `mongodb__uri=...` stands for the key mongodb.uri."""
        given = {name.replace("__", "."): value for name, value in flags.items()}
        return self.loaded(given)

    def loaded(self, flags: Mapping[str, Any]) -> Settings:
        """The settings with flags on top, by their keys, and with those that all verbs have."""
        return Settings.load(self.config, {"log.level": self.log_level, **flags})


session = Session()


@contextmanager
def connected(
    settings: Settings, *, needs_oplog: bool = False, for_capture: bool = False, **options: Any
) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client whose deployment has answered once and has change streams, and an oplog if needed; or a clear error.

    A library that the capture's sink or position store needs is looked for first: no server has to answer for that.
    """
    for key in ("sink", "position_store") if for_capture else ():
        url = getattr(settings.capture, key).get_secret_value()
        require_client(url, f"capture.{key} = {masked(url)}")
    uri = settings.mongodb.uri.get_secret_value()
    require_client(uri, f"mongodb.uri = {masked(uri)}")
    timeout = int(settings.mongodb.timeout_seconds * 1000)
    try:
        client: MongoClient[dict[str, Any]] = MongoClient(uri, serverSelectionTimeoutMS=timeout, **options)
    except (InvalidURI, ConfigurationError, ValueError) as error:
        raise SettingsError(
            f"mongodb.uri is not a MongoDB URI: {masked(str(error))}",
            hint="It looks like mongodb://host:27017/.",
        ) from None
    with client:
        try:
            deployment = Deployment.of(client)
        except ServerSelectionTimeoutError as error:
            raise ServerUnreachable(f"no MongoDB server answers at {masked(uri)}: {shown_failure(error)}") from None
        except OperationFailure as error:
            raise SettingsError(
                f"{masked(uri)} refused the connection: {masked(str((error.details or {}).get('errmsg', error)))}",
                hint="Check the user, the password and authSource in mongodb.uri.",
            ) from None
        if needs_oplog:
            refuse_engine(family_of(client, settings.mongodb.family))
            deployment.require_oplog(client, masked(uri))
        else:
            deployment.require_change_streams(masked(uri))
        yield client


def say_missing(client: MongoClient[dict[str, Any]], names: Sequence[str]) -> None:
    """Say on stderr which databases and collections do not exist, or not yet."""
    missing = missing_namespaces(client, names)
    if missing:
        verb = "does" if len(missing) == 1 else "do"
        typer.echo(
            f"{', '.join(missing)} {verb} not exist yet: check the spelling, or wait for the first write", err=True
        )
