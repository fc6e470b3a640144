"""The five places a position can be kept in, each as a URL that is empty at the start of a test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tailrace.capture.positions import PositionStore
from tailrace.capture.positions.open import open_store

PLACES = ("file", "postgresql", "mongodb", "kafka", "redis")


@pytest.fixture(params=PLACES)
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store, of each kind."""
    return url_of(request.param, request)


def url_of(place: str, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of one kind."""
    if place == "file":
        return f"file:{request.getfixturevalue('tmp_path') / 'positions'}"
    if place == "postgresql":
        return empty_database(request.getfixturevalue("postgres").dsn)
    if place == "mongodb":
        database = request.getfixturevalue("database")
        return request.getfixturevalue("mongodb").uri.replace("/?", f"/{database.name}?")
    if place == "kafka":
        return f"kafka://{request.getfixturevalue('kafka').bootstrap_servers}/positions-{uuid.uuid4().hex[:8]}"
    return request.getfixturevalue("redis_server").url


def empty_database(dsn: str) -> str:
    """Make a database of its own in a PostgreSQL server."""
    import psycopg

    name = f"positions_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return dsn.rpartition("/")[0] + f"/{name}"


@pytest.fixture
def open_another(store_url: str) -> Iterator[Callable[[], PositionStore]]:
    """Open the store once more, as another process would."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(open_store(store_url))


@pytest.fixture
def store(open_another: Callable[[], PositionStore]) -> PositionStore:
    """An empty store."""
    return open_another()
