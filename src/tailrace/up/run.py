"""One run, from the first server to the last process: start, show, keep, stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.sinks.kafka_topics import TopicCatalogue
from tailrace.settings import DashboardSettings, Settings
from tailrace.stand import Kafka, Redis, ReplicaSet, kafka, redis
from tailrace.stand.java import java_home
from tailrace.stand.mongod_binary import DEFAULT_VERSION, MongodBinary
from tailrace.stand.ports import reserve_port
from tailrace.stand.server import Server
from tailrace.up.folder import RunFolder
from tailrace.up.guide import Guide
from tailrace.up.parts import LocalServer
from tailrace.up.plan import Addresses, Plan
from tailrace.up.programs import producer_endpoint, programs
from tailrace.up.supervisor import Supervisor
from tailrace.up.views import Pulse, View

Reload = Callable[[Mapping[str, Any]], Settings]
"""Gives the user's settings with these laid over them."""


def run(
    plan: Plan, reload: Reload, view: View, *, java_home: Path, stopping: threading.Event, seconds: float | None = None
) -> bool:
    """Start everything, say how to use it, and keep it running until `stopping` is set or the time is over.

    Gives whether everything was up once.

    A part that never comes up ends the run; one that is stopped for good later leaves the others running, and its error
    is raised at the end.
    """
    with ExitStack() as opened:
        folder = opened.enter_context(RunFolder(plan.settings.up.folder))
        opened.enter_context(view)
        supervisor = opened.enter_context(Supervisor(view.changed, stopping))
        opened.callback(view.stopping)
        settings = _start(plan, reload, folder, supervisor, java_home, opened)
        was_up = settings is not None and supervisor.wait_ready()
        if settings is not None and was_up:
            view.ready(Guide.of(plan, settings, folder.settings_file, folder.logs, supervisor.pid_of("producer")))
            deadline = None if seconds is None else time.monotonic() + seconds
            pulse = Pulse(producer_endpoint(settings))
            pulse.poll()
            while not stopping.wait(1.0) and (deadline is None or time.monotonic() < deadline):
                view.tick(supervisor.down, pulse.poll())
        failures = supervisor.failures
    if failures:
        raise failures[0]
    return was_up


def _start(
    plan: Plan, reload: Reload, folder: RunFolder, supervisor: Supervisor, java_home: Path, opened: ExitStack
) -> Settings | None:
    """Start the servers, then, on settings that name them, the programs; None when it was stopped meanwhile."""
    servers = {part.name: part for part in local_servers(plan.servers, folder.path)}
    for server in servers.values():
        supervisor.keep(server)
    if not supervisor.wait_ready():
        return None
    settings = reload(plan.effective(folder.path, _addresses(servers, opened)))
    folder.write_settings(settings)
    _make_topics(plan, settings)
    for program in programs(plan, settings, folder, java_home):
        supervisor.keep(program)
    return settings


def _addresses(servers: Mapping[str, LocalServer], opened: ExitStack) -> Addresses:
    """Give where the started servers answer, and ports that stay ours until the end."""
    metrics, dashboard = reserve_port(), reserve_port(DashboardSettings().port)
    for port in (metrics, dashboard):
        opened.callback(port.release)
    at = {name: server.address for name, server in servers.items()}
    redis = f"redis://{at['redis']}/0" if "redis" in at else None
    return Addresses(at.get("mongodb"), at.get("kafka"), redis, metrics.number, dashboard.number)


def _make_topics(plan: Plan, settings: Settings) -> None:
    """Make the topics that jobs name: a Spark query does not wait for a topic to appear."""
    address = KafkaAddress.parse(settings.capture.sink.get_secret_value())
    catalogue = TopicCatalogue(address, plan.topics(settings), settings.capture.partitions, {})
    for definition in plan.definitions:
        for namespace in definition.namespaces:
            catalogue.learn(namespace)


_OPLOG_MB = 256


def local_servers(names: Iterable[str], folder: Path) -> list[LocalServer]:
    """Give the servers of these names, not yet started."""
    return [LocalServer(name, _makers(folder)[name], folder / name) for name in names]


def _makers(folder: Path) -> dict[str, Callable[[], ReplicaSet | Server]]:
    return {
        "mongodb": lambda: ReplicaSet.start(folder=folder, oplog_mb=_OPLOG_MB),
        "kafka": lambda: Kafka.start(folder=folder),
        "redis": lambda: Redis.start(folder=folder),
    }


_FETCH: Mapping[str, Callable[[], object]] = {
    "mongodb": lambda: MongodBinary.of_version(DEFAULT_VERSION),
    "kafka": kafka.jars,
    "redis": lambda: redis.program_of("redis-server"),
}


def fetch(servers: Iterable[str]) -> Path:
    """Have these servers and a Java runtime in the cache; give the home of the latter."""
    home = java_home()
    for server in servers:
        _FETCH[server]()
    return home
