"""The whole line on real servers: MongoDB, a broker behind a proxy, producers, a gateway."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from fault_proxies import FaultProxy
from nemesis.deployments import Deployment
from nemesis.jobs import Jobs
from nemesis.services import Service
from nemesis.small_disk import mount_small_disk, unmount
from tailrace.stand import Kafka, Postgres, Redis
from tailrace.stand.ports import reserve_port

DISK_MB = 64
FORMATS = ("json", "canonical", "bson")
LEASE_SECONDS = 12
"""More than one call to a broker that is away may take, or the lease would end during it."""


M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Servers(Generic[M]):
    """What outlives a run: the servers."""

    mongodb: M
    broker: Kafka
    proxy: FaultProxy
    redis: Redis
    postgres: Postgres

    @classmethod
    def start(cls, folder: Path, running: ExitStack, mongodb: M) -> Servers[M]:
        """Start the others beside MongoDB; they end with `running`."""
        proxy = running.enter_context(FaultProxy.start())
        return cls(
            mongodb,
            running.enter_context(Kafka.start(proxy=proxy, folder=folder / "kafka")),
            proxy,
            running.enter_context(Redis.start(folder=folder / "redis")),
            running.enter_context(Postgres.start(folder=folder / "postgres")),
        )


@dataclass(frozen=True, slots=True)
class Stream:
    """One producer's stream: what it promises, and where its records are."""

    name: str
    delivery: str
    source: str
    format: str
    store: str


class Line:
    """The product's processes over the servers, with names and a database of this run alone."""

    def __init__(self, servers: Servers[Deployment], folder: Path, seed: int, *, with_jobs: bool = False) -> None:
        self.mongodb = servers.mongodb
        self.broker, self.proxy = servers.broker, servers.proxy
        self.redis, self.postgres = servers.redis, servers.postgres
        self.database = f"shop{seed}"
        self._folder = folder
        self.disk = folder / "disk"
        """Where producers and gateway keep positions and logs."""
        self.has_small_disk = mount_small_disk(self.disk, DISK_MB)
        self._run = uuid.uuid4().hex[:6]
        self._gateway_port = reserve_port()
        self.streams = self._streams(seed)
        self.producers = [self._producer(stream, copy) for stream in self.streams for copy in self._copies(stream)]
        self.gateway = self._gateway()
        self.jobs = self._jobs() if with_jobs else None

    def __enter__(self) -> Self:
        for service in self.services:
            service.start()
        return self

    def __exit__(self, *_: object) -> None:
        for service in self.services:
            service.stop()
        self._gateway_port.release()
        if self.has_small_disk:
            shutil.copytree(self.disk, self._folder / "kept", ignore_dangling_symlinks=True)
            unmount(self.disk)

    @property
    def services(self) -> list[Service]:
        """All processes of the product."""
        return [*self.producers, self.gateway, *(self.jobs.services if self.jobs else ())]

    @property
    def gateway_uri(self) -> str:
        """Where drivers reach the gateway."""
        return f"mongodb://127.0.0.1:{self._gateway_port.number}/"

    def _streams(self, seed: int) -> list[Stream]:
        """Both guarantees over both sources; formats and the stores of at-least-once in turns."""
        stores: list[Callable[[], str]] = [
            lambda: f"file:{self.disk / 'positions'}",
            lambda: self.postgres.dsn,
            lambda: self.redis.url,
            lambda: f"kafka://{self.broker.proxied_servers}/nemesis-{self._run}",
            lambda: self.mongodb.store_uri,
        ]
        made = []
        for number, delivery in enumerate(("at-least-once", "exactly-once")):
            for turn, source in enumerate(self.mongodb.sources):
                once = delivery == "exactly-once"
                store = stores[3] if once else stores[(seed + 2 * turn) % len(stores)]
                chosen = FORMATS[(seed + number + turn) % len(FORMATS)]
                made.append(Stream(f"{delivery}-{source}-{self._run}", delivery, source, chosen, store()))
        return made

    def _copies(self, stream: Stream) -> range:
        """The first stream has a second producer that waits for its lease."""
        return range(2 if stream is self.streams[0] else 1)

    def _producer(self, stream: Stream, copy: int) -> Service:
        settings = {
            "capture.name": stream.name,
            "capture.namespaces": f'["{self.database}"]',
            "capture.start": "now",
            "capture.source": stream.source,
            "capture.delivery": stream.delivery,
            "capture.format": stream.format,
            "capture.sink": f"kafka://{self.broker.proxied_servers}",
            "capture.topic_prefix": stream.name,
            "capture.partitions": 2,
            "capture.position_store": stream.store,
            "capture.lease_seconds": LEASE_SECONDS,
        }
        return self._service(f"{stream.name}-{copy}", ["produce"], settings)

    def _jobs(self) -> Jobs:
        """The Spark jobs behind the first stream."""
        stream, servers = self.streams[0], self.broker.proxied_servers
        return Jobs(self._folder / "jobs", self.database, stream.name, stream.format, servers, self.redis.url)

    def _gateway(self) -> Service:
        return self._service("gateway", ["serve"], {"gateway.port": self._gateway_port.number})

    def _service(self, name: str, verb: list[str], settings: Mapping[str, Any]) -> Service:
        chosen = {"mongodb.uri": self.mongodb.uri, **settings}
        environment = {f"TAILRACE_{key.upper().replace('.', '__')}": str(value) for key, value in chosen.items()}
        program = str(Path(sys.executable).with_name("tailrace"))
        return Service(name, [program, *verb], self.disk, environment)
