"""`tailrace dashboard`: the live page about everything that is configured."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.session import session
from tailrace.errors import MissingExtra


def dashboard(
    address: Annotated[str | None, typer.Option(help="Address to listen at (dashboard.address).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen at; 0 is a free one (dashboard.port).")] = None,
    uri: Annotated[str | None, typer.Option(help="MongoDB (mongodb.uri).")] = None,
    producer: Annotated[
        list[str] | None, typer.Option(help="Endpoint of a producer; repeat for several (dashboard.producers).")
    ] = None,
    gateway: Annotated[
        list[str] | None, typer.Option(help="Metrics of a gateway; repeat for several (dashboard.gateways).")
    ] = None,
    sink: Annotated[str | None, typer.Option(help="Where capture delivers to (capture.sink).")] = None,
    store: Annotated[str | None, typer.Option(help="Position store (capture.position_store).")] = None,
    redis: Annotated[str | None, typer.Option(help="Redis of the features (features.redis_url).")] = None,
    warehouse: Annotated[str | None, typer.Option(help="Folder of the tables (warehouse.folder).")] = None,
) -> None:
    """Show the pipeline live in a browser: flow, oplog window, lag, latency, events, features, tables and gaps.

    Everything it looks at is optional: what is not there is shown with the reason. At 127.0.0.1 anybody on this machine
    may look; beyond, dashboard.token and TLS are needed. Actions need dashboard.token everywhere.
    """
    from tailrace.cli.log import configure_log

    settings = session.settings(
        mongodb__uri=uri,
        dashboard__address=address,
        dashboard__port=port,
        dashboard__producers=tuple(producer) if producer else None,
        dashboard__gateways=tuple(gateway) if gateway else None,
        capture__sink=sink,
        capture__position_store=store,
        features__redis_url=redis,
        warehouse__folder=warehouse,
    )
    configure_log(settings.log)
    try:
        from tailrace.dashboard import serve
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the dashboard needs the Python package {error.name}") from None
    interrupted = serve(settings, lambda url: typer.echo(f"dashboard at {url}"))
    if interrupted:
        raise KeyboardInterrupt
