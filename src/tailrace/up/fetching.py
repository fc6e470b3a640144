"""Fetch what is missing before anything is started, so that a first run shows one download after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tailrace.stand import kafka, redis
from tailrace.stand.java import java_home
from tailrace.stand.mongod_binary import DEFAULT_VERSION, MongodBinary

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
