"""The programs of the pipeline: each one verb of the command line, and how to see that it does its work."""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import redis

from tailrace.errors import ServerUnreachable
from tailrace.features.keys import KeyNames
from tailrace.http_client import fetch
from tailrace.redis_access import connect
from tailrace.settings import Settings
from tailrace.up.demo import FEATURES, LOAD, NAMESPACE
from tailrace.up.folder import RunFolder
from tailrace.up.parts import Program, Ready, Stage
from tailrace.up.plan import Plan
from tailrace.warehouse import read_tables

_SECONDS_TO_ANSWER = 2.0
# Whether it answers is asked of a process of our own: that its certificate is made for another name says nothing.
_ANY_CERTIFICATE = ssl._create_unverified_context()
_YIELDING = ("nice", "-n", "5")
"""Tables are a matter of seconds, features of milliseconds: where the processor is short, the tables wait."""
_SECONDS_FOR_SPARK = 600.0
"""On a first run the jobs fetch their connectors."""


def programs(plan: Plan, settings: Settings, folder: RunFolder, java_home: Path) -> Iterator[Program]:
    """Give the programs, in the order in which changes pass them."""
    made = _Maker(plan, settings, folder, {"JAVA_HOME": str(java_home)})
    yield made.producer()
    yield from made.features()
    yield made.warehouse()
    yield made.dashboard()
    if plan.demo:
        yield made.load()


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the command lines."""

    plan: Plan
    settings: Settings
    folder: RunFolder
    environment: Mapping[str, str]

    def producer(self) -> Program:
        return self._verb("producer", "produce", ready=_answers(f"{producer_endpoint(self.settings)}/healthz"))

    def warehouse(self) -> Program:
        topics = f"/{self.plan.topics(self.settings).pattern}/"
        return self._verb(
            "warehouse",
            *("warehouse", "run", "--topics", topics, "--format", self.settings.capture.format),
            ready=self._warehouse_ready(),
            timeout=_SECONDS_FOR_SPARK,
            before=_YIELDING,
        )

    def _warehouse_ready(self) -> Ready:
        if self.plan.demo and has_local_tables(self.settings):
            return _wrote_table(self.settings.warehouse.folder, NAMESPACE)
        return _has_logged(r"^warehouse .*, checkpoint ")

    def dashboard(self) -> Program:
        address = dashboard_address(self.settings)
        return self._verb("dashboard", "dashboard", ready=_answers(f"{address}healthz"), address=address)

    def features(self) -> Iterator[Program]:
        for file, definition in zip(self.plan.features, self.plan.definitions, strict=True):
            naming = self.plan.topics(self.settings)
            topic = ",".join(naming.topic(namespace) for namespace in definition.namespaces)
            yield self._verb(
                f"features {definition.name}",
                *("features", file, "--topics", topic, "--format", self.settings.capture.format),
                ready=self._features_ready(definition.name),
                timeout=_SECONDS_FOR_SPARK,
            )

    def _features_ready(self, name: str) -> Ready:
        """With the demo's load a batch comes for certain; otherwise a query that waits for data is all one can ask."""
        if self.plan.demo and name == FEATURES:
            return _wrote_features(self.settings.features.redis_url.get_secret_value(), name)
        return _has_logged(rf"^features {re.escape(name)} of ")

    def load(self) -> Program:
        command = [sys.executable, str(LOAD)]  # its URI may have a password, which `ps` would show
        return Program(
            "load",
            [*command, "--rate", str(self.plan.rate)],
            log=self.folder.log_of("load"),
            ready=lambda began, logged: True,
            environment={**self.environment, "MONGODB_URI": self.settings.mongodb.uri.get_secret_value()},
            stage=Stage.LOAD,
        )

    def _verb(
        self,
        name: str,
        *verb: str,
        ready: Ready,
        address: str = "",
        timeout: float = 60.0,
        before: tuple[str, ...] = (),
    ) -> Program:
        program = [*before, sys.executable, "-m", "tailrace.cli.app", "--config", str(self.folder.settings_file)]
        return Program(
            name,
            [*program, *verb],
            log=self.folder.log_of(name),
            ready=ready,
            environment=self.environment,
            address=address,
            timeout=timeout,
        )


def producer_endpoint(settings: Settings) -> str:
    """Give the address of the producer's own endpoint."""
    return f"http://{settings.monitor.metrics_address}:{settings.monitor.metrics_port}"


def dashboard_address(settings: Settings) -> str:
    """Give the address of the page, as a browser on this machine opens it."""
    dashboard = settings.dashboard
    scheme = "http" if dashboard.certificate is None else "https"
    host = "127.0.0.1" if dashboard.address in ("0.0.0.0", "::") else dashboard.address
    return f"{scheme}://{host}:{dashboard.port}/"


def _answers(url: str) -> Ready:
    """Ready when the address answers at all."""

    def ready(began: float, logged: str) -> bool:
        try:
            fetch(url, timeout=_SECONDS_TO_ANSWER, tls=_ANY_CERTIFICATE)
        except ServerUnreachable:
            return False
        return True

    return ready


def _wrote_features(redis_url: str, name: str) -> Ready:
    """Ready when a batch that came after the start is in Redis."""

    def ready(began: float, logged: str) -> bool:
        try:
            with connect(redis_url) as client:
                updated = client.hget(KeyNames(name).progress, "updated_at")
        except redis.RedisError:
            return False
        return updated is not None and float(updated) / 1000 > began

    return ready


def _wrote_table(folder: str, name: str) -> Ready:
    """Ready when a mirror has a snapshot that came after the start."""

    def ready(began: float, logged: str) -> bool:
        newest = [state.snapshots[-1].at for state in read_tables(folder) if state.name == name and state.snapshots]
        return any(at.timestamp() > began for at in newest)

    return ready


def has_local_tables(settings: Settings) -> bool:
    """Whether the tables are in a folder of this machine, so that they can be looked at without Spark."""
    return not settings.warehouse.catalog_config and "://" not in settings.warehouse.folder


def _has_logged(pattern: str) -> Ready:
    """Ready when the program has logged such a line since it was started."""
    line = re.compile(pattern, re.MULTILINE)
    return lambda began, logged: line.search(logged) is not None
