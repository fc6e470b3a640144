"""`tailrace lookup`: the features of one entity, as they are now."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.session import session


def lookup(
    name: Annotated[str, typer.Argument(help="Name of the features, as in their definition.")],
    entity: Annotated[str, typer.Argument(help="The entity, such as a user's id.")],
    redis: Annotated[str | None, typer.Option(help="Redis (features.redis_url).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look up the features of an entity in Redis, with all windows as they are at this moment."""
    from redis import Redis, RedisError

    from tailrace.errors import ServerUnreachable
    from tailrace.features import read
    from tailrace.settings import masked

    url = session.settings(features__redis_url=redis).features.redis_url.get_secret_value()
    try:
        with Redis.from_url(url) as client:
            found = read(client, entity, name)
    except RedisError as error:
        raise ServerUnreachable(f"no Redis answers at {masked(url)}: {error}") from None
    if as_json:
        as_of = found.as_of and found.as_of.isoformat()
        typer.echo(json.dumps({"at": found.at.isoformat(), "as_of": as_of, "values": dict(found.values)}, default=str))
        return
    table = Table(box=None, show_header=False)
    for key, value in found.values.items():
        table.add_row(key, f"{value:,.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
    typer.echo(f" as of {found.as_of:%Y-%m-%d %H:%M:%S} UTC" if found.as_of else f" nothing is known of {entity}")
