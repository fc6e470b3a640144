"""What the flags before the verb said, and the settings and connections that verbs make from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConfigurationError, InvalidURI, OperationFailure, ServerSelectionTimeoutError

from tailrace.errors import ServerUnreachable, SettingsError
from tailrace.settings import Settings, masked


class Session:
    """The global flags of one command line."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the last command line."""
        self.config: Path | None = None
        self.debug = False

    def settings(self, **flags: Any) -> Settings:
        """The settings with this verb's flags on top; `mongodb__uri=...` stands for the key mongodb.uri."""
        return Settings.load(self.config, {name.replace("__", "."): value for name, value in flags.items()})


session = Session()


@contextmanager
def connected(settings: Settings, **options: Any) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client whose server has answered once, or a clear error."""
    uri = settings.mongodb.uri.get_secret_value()
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
            client.admin.command("ping")
        except ServerSelectionTimeoutError as error:
            cause = masked(str(error)).split(", Timeout:")[0]
            raise ServerUnreachable(f"no MongoDB server answers at {masked(uri)}: {cause}") from None
        except OperationFailure as error:
            raise SettingsError(
                f"{masked(uri)} refused the connection: {error.details and error.details.get('errmsg')}",
                hint="Check the user and password in mongodb.uri.",
            ) from None
        yield client
