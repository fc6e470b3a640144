"""The servers that `tailrace stand` can start, by name: how to start each, and how a client reaches it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.errors import StandError


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One server as `tailrace stand status` shows it."""

    name: str
    address: str
    setting: str
    pids: tuple[int, ...]
    log: str


@dataclass(frozen=True, slots=True)
class StandPlan:
    """What to start."""

    servers: tuple[str, ...] = ("mongodb",)
    mongodb_version: str = "6.0.5"
    mongodb_nodes: int = 1

    def check(self) -> None:
        """Refuse a name that nobody knows, before anything is started."""
        for name in self.servers:
            if name not in STARTERS:
                raise StandError(f"no server is called {name}", hint=f"Choose from: {', '.join(STARTERS)}.")


Started = tuple[AbstractContextManager[Any], RunningServer]


def start_mongodb(plan: StandPlan, folder: Path) -> Started:
    """A replica set."""
    from tailrace.stand.replica_set import ReplicaSet

    server = ReplicaSet.start(plan.mongodb_version, nodes=plan.mongodb_nodes, folder=folder)
    pids = tuple(node.pid for node in server.nodes)
    return server, RunningServer("mongodb", server.uri, "mongodb.uri", pids, str(server.nodes[0].log))


def start_kafka(plan: StandPlan, folder: Path) -> Started:
    """A broker."""
    from tailrace.stand.kafka import Kafka

    server = Kafka.start(folder=folder)
    address = f"kafka://{server.bootstrap_servers}"
    return server, RunningServer("kafka", address, "capture.sink", (server.pid,), str(server.log))


def start_redis(plan: StandPlan, folder: Path) -> Started:
    """A Redis server."""
    from tailrace.stand.redis import Redis

    server = Redis.start(folder=folder)
    return server, RunningServer("redis", server.url, "features.redis_url", (server.pid,), str(server.log))


def start_postgres(plan: StandPlan, folder: Path) -> Started:
    """A PostgreSQL server."""
    from tailrace.stand.postgres import Postgres

    server = Postgres.start(folder=folder)
    return server, RunningServer("postgres", server.dsn, "capture.position_store", (server.pid,), str(server.log))


STARTERS: dict[str, Callable[[StandPlan, Path], Started]] = {
    "mongodb": start_mongodb,
    "kafka": start_kafka,
    "redis": start_redis,
    "postgres": start_postgres,
}
