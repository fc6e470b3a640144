"""What there is to start: servers that the settings do not name, and the programs, on settings that fit together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.capture.kafka_address import KafkaAddress
from tailrace.capture.sinks.topics import DEFAULT_TEMPLATE, TopicRule
from tailrace.errors import SettingsError
from tailrace.features import Definition, load_definition
from tailrace.settings import Settings
from tailrace.up.demo import DEFINITION, NAMESPACE

_SMALL_JVM = "-Xss16m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Two JVMs beside a broker on a small machine: one thread collects, and only the quick compiler runs. Seen once each,
on a busy machine: 26 s of processor time until the first batch of features is done, and 33 s without the two flags.
-Xss16m is what the jobs need anyhow (tailrace.spark.session)."""

_LOCAL_PARTITIONS = 2
TEMPORARY = "tmp"
"""Folder for what the JVMs of the jobs leave behind when they are killed; removed with the run."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where things that are started here answer; None for what is the user's own."""

    mongodb: str | None = None
    kafka: str | None = None
    redis: str | None = None
    metrics_port: int | None = None
    dashboard_port: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The user's settings, and whether the demo's load is wanted."""

    settings: Settings
    demo: bool = False
    rate: float = 50.0

    def __post_init__(self) -> None:
        if self._is_given("capture.sink") and not self.settings.capture.sink.get_secret_value().startswith("kafka:"):
            raise SettingsError(
                "capture.sink is not Kafka, and the Spark jobs read the changes from there",
                hint="Set capture.sink to kafka://..., or leave it out to have a broker started.",
            )
        for name in self.features:
            load_definition(name)

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers to start: those that no setting names."""
        named = {
            "mongodb": self._is_given("mongodb.uri"),
            "kafka": any(self._is_given(key) for key in ("capture.sink", *_BROKERS)),
            "redis": self._is_given("features.redis_url"),
        }
        return tuple(name for name, given in named.items() if not given)

    @property
    def features(self) -> tuple[str, ...]:
        """The definitions whose features are kept."""
        return tuple(dict.fromkeys([*self.settings.up.features, *([DEFINITION] if self.demo else [])]))

    @property
    def definitions(self) -> list[Definition]:
        """The same, read."""
        return [load_definition(name) for name in self.features]

    def effective(self, folder: Path, addresses: Addresses) -> dict[str, Any]:
        """Give every setting that the programs need beyond the user's own, as `{"mongodb.uri": ...}`.

        What a server that is started here has forgotten with the last run, nobody else may remember: when there is one,
        positions, checkpoints and tables live in the run folder too.
        """
        wanted = {**self._connections(addresses), **self._observation(addresses), **self._jobs(folder)}
        if self.servers:
            wanted |= _state_in(folder)
        return {key: value for key, value in wanted.items() if value is not None and not self._is_given(key)}

    def topics(self, settings: Settings) -> TopicRule:
        """Give the rule by which the producer names topics."""
        return TopicRule(settings.capture.topic_prefix, settings.capture.topic or DEFAULT_TEMPLATE)

    def _connections(self, addresses: Addresses) -> dict[str, Any]:
        sink, brokers = self._kafka(addresses)
        return {
            "mongodb.uri": addresses.mongodb,
            "capture.sink": sink,
            **dict.fromkeys(_BROKERS, brokers),
            "features.redis_url": addresses.redis,
        }

    def _kafka(self, addresses: Addresses) -> tuple[str, str]:
        """Give the producer's sink and the jobs' brokers: started here, or each from the one that is given."""
        if addresses.kafka is not None:
            return f"kafka://{addresses.kafka}", addresses.kafka
        if self._is_given("capture.sink"):
            sink = self.settings.capture.sink.get_secret_value()
            return sink, KafkaAddress.parse(sink).servers
        brokers = next(_value(self.settings, key) for key in _BROKERS if self._is_given(key))
        return f"kafka://{brokers}", brokers

    def _observation(self, addresses: Addresses) -> dict[str, Any]:
        port = self.settings.monitor.metrics_port or addresses.metrics_port
        given = self.settings.monitor.control_token
        token = given.get_secret_value() if given else secrets.token_urlsafe(24)
        return {
            "monitor.metrics_port": port,
            "monitor.control_token": token,
            "dashboard.port": addresses.dashboard_port,
            "dashboard.token": secrets.token_urlsafe(24),
            "dashboard.producers": (f"http://{self.settings.monitor.metrics_address}:{port}",),
            "dashboard.control_token": token,
        }

    def _jobs(self, folder: Path) -> dict[str, Any]:
        temporary = folder / TEMPORARY
        return {
            "capture.format": "bson",
            "capture.namespaces": (NAMESPACE,) if self.demo else None,
            # Every partition is a task of every batch, and one machine runs few at once.
            "capture.partitions": _LOCAL_PARTITIONS if "kafka" in self.servers else None,
            "spark.master": "local[2,4]",
            "spark.driver_memory": "512m",
            "spark.config": {
                "spark.driver.extraJavaOptions": f'{_SMALL_JVM} "-Djava.io.tmpdir={temporary}"',
                "spark.local.dir": str(temporary),
            },
        }

    def _is_given(self, key: str) -> bool:
        """Whether the user has set it; the port 0 is a free one, and which that is has to be known here."""
        section, _, name = key.partition(".")
        is_any_port = name.endswith("port") and _value(self.settings, key) == 0
        return name in getattr(self.settings, section).model_fields_set and not is_any_port


_BROKERS = ("features.kafka_servers", "warehouse.kafka_servers")


def _state_in(folder: Path) -> dict[str, Any]:
    return {
        "capture.position_store": f"file:{folder / 'positions'}",
        "spark.checkpoints": str(folder / "checkpoints"),
        "features.dead_letters": str(folder / "dead-letters"),
        "warehouse.folder": str(folder / "warehouse"),
    }


def _value(settings: Settings, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)
