"""The servers that a run starts itself, each on a free port with its data in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tailrace.stand import Kafka, Redis, ReplicaSet, kafka, redis
from tailrace.stand.java import java_home
from tailrace.stand.mongod_binary import DEFAULT_VERSION, MongodBinary
from tailrace.stand.server import Server
from tailrace.up.parts import LocalServer

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
