"""The servers that a run starts itself, each on a free port with its data in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tailrace.stand import Kafka, Redis, ReplicaSet
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
