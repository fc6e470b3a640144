"""`tailrace lookup`: the features of one entity, as they are now."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.flags import REDIS, AsJson, with_settings
from tailrace.settings import Settings, masked

_SECONDS: Final = 5
"""How long Redis may take to answer."""


@with_settings(REDIS)
def lookup(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="Name of the features, as in their definition.")],
    entity: Annotated[str, typer.Argument(help="The entity, such as a user's id.")],
    as_json: AsJson = False,
) -> None:
    """Show the features of an entity, with all windows as of now."""
    from redis import AuthenticationError, RedisError

    from tailrace.errors import FeatureStoreUnavailable, SettingsError
    from tailrace.features import read_named
    from tailrace.redis_access import connect, not_authorized

    url = settings.features.redis_url.get_secret_value()
    try:
        with connect(url, socket_connect_timeout=_SECONDS, socket_timeout=_SECONDS) as client:
            client.ping()  # reading retries for a minute, which is right for a job and not for somebody who waits
            found = read_named(client, entity, name)
    except ValueError as error:
        raise SettingsError(f"features.redis_url: {error}", hint="It looks like redis://host:6379/0.") from None
    except AuthenticationError as error:
        hint = "Check the user and the password in features.redis_url."
        raise SettingsError(f"Redis at {masked(url)} refused the user: {error}", hint=hint) from None
    except RedisError as error:
        refused = not_authorized(error)
        raise refused or FeatureStoreUnavailable(f"no Redis answers at {masked(url)}: {error}") from None
    if as_json:
        as_of = found.as_of and found.as_of.isoformat()
        typer.echo(json.dumps({"at": found.at.isoformat(), "as_of": as_of, "values": dict(found.values)}, default=str))
        return
    table = Table(box=None, show_header=False)
    for key, value in found.values.items():
        table.add_row(key, f"{value:,.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
    typer.echo(f" as of {found.as_of:%Y-%m-%d %H:%M:%S} UTC" if found.as_of else f" nothing is known of {entity}")
