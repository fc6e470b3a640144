"""`tailrace serve`: change streams for any driver, from one oplog scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tailrace.cli.flags import Flag, with_settings
from tailrace.cli.renewal import Renewal, run_renewed
from tailrace.cli.session import connected
from tailrace.logs import get_logger
from tailrace.settings import Settings

if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from pymongo import MongoClient

    from tailrace.cluster import ClusterHub
    from tailrace.gateway import EngineProof, Gateway, GatewayOptions
    from tailrace.hub import Hub
    from tailrace.monitor import GatewayMetrics
    from tailrace.settings import GatewaySettings

_POLL_SECONDS = 1.0
_AWAIT_MS = 1_000
_SWITCH_SECONDS = 0.0005
"""How long a thread that computes may keep the event loop, which all clients wait for, from the interpreter."""


def _by_name(shards: list[str]) -> dict[str, str]:
    """Read NAME=URI; only the first equals sign parts them."""
    from tailrace.errors import SettingsError

    parted = [each.partition("=") for each in shards]
    if not all(name and uri for name, _, uri in parted):
        raise SettingsError("--shard takes NAME=URI", hint="Give for example --shard s0=mongodb://host1,host2/.")
    return {name: uri for name, _, uri in parted}


@with_settings(
    Flag("uri", "mongodb.uri", "A replica set, or a cluster's config servers or mongos"),
    Flag("address", "gateway.address", "Address to listen on"),
    Flag("port", "gateway.port", "Port to listen on", int),
    Flag("watch_only", "gateway.watch_only", "Refuse everything but change streams", bool),
    Flag("allow_open", "gateway.allow_open", "Listen beyond loopback even if the upstream has no authentication", bool),
    Flag("certificate", "gateway.certificate", "PEM file, for TLS"),
    Flag("client_ca", "gateway.client_ca", "PEM file of authorities for client certificates"),
    Flag("shard", "gateway.shards", "NAME=URI of a shard, instead of discovering them", list[str], _by_name),
    Flag("order", "gateway.order", "Order of events across shards: strict or per-key"),
    Flag("present", "gateway.present", "Present itself to drivers as mongos or replica-set"),
    Flag("advertise", "gateway.advertise", "HOST:PORT for drivers of a replica set"),
    Flag("test_commands", "gateway.test_commands", "Honour failCommand", bool),
    Flag("metrics_port", "gateway.metrics_port", "Serve Prometheus metrics", int),
)
def serve(settings: Settings) -> None:
    """Serve change streams to any number of MongoDB drivers from one oplog scan.

    Drivers see a mongos or, with --present replica-set, a replica set with one member. Anything but a change stream is
    forwarded to the upstream. Needs the role `read` on the database `local`. On Ctrl-C or SIGTERM, clients get a
    resumable error and continue at another gateway.
    """
    from tailrace.cli.log import configure_log

    configure_log(settings.log)
    run_renewed(settings, _run)
    get_logger("tailrace.cli").info("stopped", reason="signal")


def _run(settings: Settings, renewal: Renewal) -> None:
    """Serve until a signal, or until there are new secrets to log in with upstream."""
    import asyncio
    from contextlib import ExitStack

    from tailrace import __version__
    from tailrace.gateway import engine_proof
    from tailrace.monitor import serve_endpoint
    from tailrace.policy.configured import policy_of
    from tailrace.telemetry.tracing import telemetry_of

    policy = policy_of(settings)
    with ExitStack() as opened:
        if settings.gateway.metrics_port is not None:
            opened.enter_context(serve_endpoint(settings.gateway.metrics_port, settings.monitor.metrics_address))
        opened.enter_context(telemetry_of(settings.telemetry))
        client = opened.enter_context(connected(settings, needs_oplog=True, socketTimeoutMS=20_000))
        upstream = settings.mongodb.uri.get_secret_value()
        hub = _hub(client, upstream, settings.gateway)
        opened.callback(hub.close)
        get_logger("tailrace.cli").info(
            "starting", version=__version__, mongodb=settings.mongodb.uri, port=settings.gateway.port
        )
        proof = engine_proof(hub, client, settings.engine, policy)
        asyncio.run(_serve(hub, client, upstream, _options(settings.gateway), proof, renewal))


def _hub(client: MongoClient[Any], uri: str, settings: GatewaySettings) -> Hub | ClusterHub:
    """Read one replica set, or all shards of the cluster that a config server or mongos belongs to."""
    from tailrace.cluster import ClusterHub, Order, config_uri
    from tailrace.engine import Dialect
    from tailrace.engine.live import LiveImages
    from tailrace.hub import Hub
    from tailrace.oplog.tail import LiveOplog

    limits: dict[str, Any] = {
        "ring_bytes": settings.ring_mb * 1024 * 1024,
        "channel_bytes": settings.channels_mb * 1024 * 1024,
    }
    config = config_uri(client, uri) if not settings.shards else uri
    if config is not None:
        shards, order = settings.shards or None, Order(settings.order)
        return ClusterHub(config, shards=shards, order=order, unproved=True, **limits)
    dialect = Dialect.nearest(client.server_info()["version"])
    return Hub(LiveOplog(client, await_ms=_AWAIT_MS), dialect, images=LiveImages(client), **limits)


def _options(settings: GatewaySettings) -> GatewayOptions:
    from tailrace.gateway import GatewayOptions, Presentation

    return GatewayOptions(
        address=settings.address,
        port=settings.port,
        watch_only=settings.watch_only,
        allow_open=settings.allow_open,
        test_commands=settings.test_commands,
        present=Presentation(settings.present),
        advertise=settings.advertise,
        certificate=settings.certificate,
        max_connections=settings.max_connections,
        seconds_for_a_message=settings.message_seconds,
        cursor_timeout=settings.cursor_timeout_seconds,
        stage_seconds=settings.stage_seconds,
        seconds_between_checks=settings.privilege_seconds,
        client_ca=settings.client_ca,
        message_bytes=settings.message_mb * 1_000_000,
        login_message_bytes=settings.login_message_kb * 1024,
        receive_bytes=settings.receive_mb * 1024 * 1024,
        connections_per_address=settings.connections_per_address,
        accepts_per_second=settings.accepts_per_second,
        connections_per_user=settings.connections_per_user,
        streams_per_user=settings.streams_per_user,
        login_attempts=settings.login_attempts,
        idle_seconds=settings.idle_seconds,
        access_log=settings.access_log,
    )


async def _serve(
    hub: Hub | ClusterHub,
    client: MongoClient[Any],
    uri: str,
    options: GatewayOptions,
    proof: EngineProof,
    renewal: Renewal,
) -> None:
    import asyncio
    import signal
    import sys

    from tailrace.gateway import Gateway
    from tailrace.monitor import GatewayMetrics
    from tailrace.settings import masked

    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Gateway.serve(hub, client, uri, options, proof) as gateway:
        listener = f"{options.address}:{gateway.port}"
        typer.echo(f"serving change streams of {masked(uri)} at mongodb://{listener}/")
        name = client.topology_description.replica_set_name or "upstream"
        await _report(gateway, name, GatewayMetrics(listener), stop, proof, renewal)


async def _report(
    gateway: Gateway, name: str, metrics: GatewayMetrics, stop: asyncio.Event, proof: EngineProof, renewal: Renewal
) -> None:
    """Show the numbers every second, until it is time to stop."""
    import asyncio

    from tailrace.monitor.metrics import ProofMetrics

    proved = ProofMetrics(metrics.listener)
    while not (stop.is_set() or await asyncio.to_thread(renewal.poll)):
        _show(gateway, name, metrics)
        if proof is not None:
            proved.show(proof.counts(), proof.by_trust())
            proved.serves(proof.is_serving)
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue


def _show(gateway: Gateway, name: str, metrics: GatewayMetrics) -> None:
    from tailrace.cluster import ClusterHub

    counts = gateway.counts
    metrics.show_gateway(
        connections=counts.connections,
        dropped=counts.dropped,
        refused=counts.refused,
        delayed=counts.delayed,
        failed_logins=counts.failed_logins,
        failed=counts.failed,
        commands=counts.commands,
        passed=counts.passed,
        left_to_upstream=counts.left_to_upstream,
        events=counts.events,
        size=counts.event_bytes,
    )
    hubs = {name: gateway.hub} if not isinstance(gateway.hub, ClusterHub) else gateway.hub.hubs
    subscribers = len(gateway.hub.subscribers)  # on a cluster each of them watches all shards
    for shard, hub in hubs.items():
        metrics.show_hub(
            shard,
            entries=hub.counts.entries,
            size=hub.counts.entry_bytes,
            scans=hub.counts.scans,
            subscribers=subscribers,
            channels=hub.channels,
            ring=hub.ring_size,
            cursors=hub.upstream_cursors,
        )
    metrics.show_lags({(shard, space): lag for shard in hubs for space, lag in gateway.hub.lags().items()})
    if isinstance(gateway.hub, ClusterHub):
        metrics.show_merge(gateway.hub.blocking_seconds(), gateway.hub.stalled)
