"""`tailrace dashboard`: the live page about everything that is configured."""

from __future__ import annotations

import typer

from tailrace.cli.flags import REDIS, SINK, STORE, URI, Flag, with_settings
from tailrace.cli.renewal import Renewal, run_renewed
from tailrace.extras import missing_extra
from tailrace.settings import Settings


@with_settings(
    Flag("address", "dashboard.address", "Address to listen on"),
    Flag("port", "dashboard.port", "Port to listen on; 0 picks a free one", int),
    URI,
    Flag("producer", "dashboard.producers", "Endpoint of a producer; repeat for several", list[str]),
    Flag("gateway", "dashboard.gateways", "Metrics of a gateway; repeat for several", list[str]),
    SINK,
    STORE,
    REDIS,
    Flag("warehouse", "warehouse.folder", "Folder of the tables"),
)
def dashboard(settings: Settings) -> None:
    """Serve a live page about the pipeline: flow, oplog window, lag, events, features, tables and gaps.

    Every part of the pipeline is optional; a missing one is shown with the reason. On 127.0.0.1 anyone on this machine
    can view the page; any other address requires dashboard.token and TLS. Actions always require dashboard.token.
    """
    from tailrace.cli.log import configure_log

    configure_log(settings.log)
    try:
        from tailrace.dashboard import serve
    except ModuleNotFoundError as error:
        raise missing_extra(error, "the dashboard") from None

    def run(settings: Settings, renewal: Renewal) -> None:
        if serve(settings, lambda url: typer.echo(f"dashboard at {url}"), renewal.poll):
            raise KeyboardInterrupt

    run_renewed(settings, run)
