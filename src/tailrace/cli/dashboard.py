"""`tailrace dashboard`: the live page about everything that is configured."""

from __future__ import annotations

import typer

from tailrace.cli.flags import REDIS, SINK, STORE, URI, Flag, with_settings
from tailrace.extras import missing_extra
from tailrace.settings import Settings


@with_settings(
    Flag("address", "dashboard.address", "Address to listen at"),
    Flag("port", "dashboard.port", "Port to listen at; 0 is a free one", int),
    URI,
    Flag("producer", "dashboard.producers", "Endpoint of a producer; repeat for several", list[str]),
    Flag("gateway", "dashboard.gateways", "Metrics of a gateway; repeat for several", list[str]),
    SINK,
    STORE,
    REDIS,
    Flag("warehouse", "warehouse.folder", "Folder of the tables"),
)
def dashboard(settings: Settings) -> None:
    """Show the pipeline live in a browser: flow, oplog window, lag, latency, events, features, tables and gaps.

    Everything it looks at is optional: what is not there is shown with the reason. At 127.0.0.1 anybody on this machine
    may look; beyond, dashboard.token and TLS are needed. Actions need dashboard.token everywhere.
    """
    from tailrace.cli.log import configure_log

    configure_log(settings.log)
    try:
        from tailrace.dashboard import serve
    except ModuleNotFoundError as error:
        raise missing_extra(error, "the dashboard") from None
    interrupted = serve(settings, lambda url: typer.echo(f"dashboard at {url}"))
    if interrupted:
        raise KeyboardInterrupt
