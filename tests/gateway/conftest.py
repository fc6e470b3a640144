"""Gateways for the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.running_gateway import RunningGateway
from tailrace.gateway import GatewayOptions
from tailrace.stand import ReplicaSet

_OTHERS = ("4.2.6", "4.4.2", "5.0.4", "6.0.27", "7.0.28")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the prose tests on all versions but one, and with the other shell, to `make conformance`."""
    for item in items:
        if item.path.match("gateway/test_prose.py") and not item.name.endswith("[sync-6.0.5]"):
            item.add_marker(pytest.mark.long)


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., RunningGateway]]:
    """Start gateways that end with the test: `start_gateway(mongodb.uri, watch_only=True)`."""
    with ExitStack() as running:
        yield lambda uri, **options: running.enter_context(
            closing(RunningGateway(uri, GatewayOptions(**{"test_commands": True, **options})))
        )


@contextmanager
def secured_server(version: str, folder: Path, *, auth: bool = True) -> Iterator[ReplicaSet]:
    """A replica set with authentication: `ann` and `ben` may read `pub`, and `host` may kill the cursors and sessions
    of others. All have the password `secret`. Without `auth` they are there too, and nobody has to log in."""
    with ReplicaSet.start(version, auth=auth, folder=folder) as made:
        readers = [{"role": "read", "db": "pub"}]
        for user, roles in {
            "ann": readers,
            "ben": readers,
            "host": [*readers, {"role": "hostManager", "db": "admin"}],
        }.items():
            made.add_user(user, "secret", roles)
        with made.client() as root:
            root.pub.create_collection("c")
        yield made


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """The one that tests of this process share."""
    with secured_server("6.0.5", tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture(scope="module", params=["6.0.5", *(pytest.param(each, marks=pytest.mark.long) for each in _OTHERS)])
def each_secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """The same of each version; `make outsiders` runs on those that are left out otherwise."""
    if request.param == "6.0.5":
        yield request.getfixturevalue("secured")
        return
    with secured_server(request.param, tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture(scope="module")
def before_each(each_secured: ReplicaSet) -> Iterator[RunningGateway]:
    """One gateway for all of them; nobody is slowed down."""
    with closing(RunningGateway(each_secured.uri, GatewayOptions(login_attempts=0, access_log=False))) as running:
        yield running


@pytest.fixture(scope="module", params=["6.0.5", *_OTHERS])
def each_open(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """Servers of each version with the same users, who need not log in."""
    with secured_server(request.param, tmp_path_factory.mktemp("open"), auth=False) as made:
        yield made


@pytest.fixture(scope="module")
def before_open(each_open: ReplicaSet) -> Iterator[RunningGateway]:
    """One gateway for all of them; nobody is slowed down."""
    with closing(RunningGateway(each_open.uri, GatewayOptions(login_attempts=0, access_log=False))) as running:
        yield running


@pytest.fixture
def gateway(start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet) -> RunningGateway:
    """A gateway before `mongodb`."""
    made: Any = start_gateway(mongodb.uri)
    return made
