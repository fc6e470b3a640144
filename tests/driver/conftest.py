"""Servers and shells for the driver's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from pymongo import common

from driver.shells import SHELLS, Recorder, Shell
from driver.spec_servers import Standalone
from replica_sets import SharedReplicaSets


@pytest.fixture(autouse=True, scope="module")
def quick_heartbeats() -> Iterator[None]:
    """Let clients look again soon after a "not primary" that a fail point made up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "MIN_HEARTBEAT_INTERVAL", 0.05)
        yield


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """Each test that asks for a shell runs with both."""
    made = SHELLS[request.param]()
    yield made
    made.close()


@pytest.fixture
def connect(shell: Shell) -> Iterator[Callable[..., tuple[Any, Recorder]]]:
    """Connect with the test's shell: `client, recorder = connect(uri, **options)`."""
    clients = []

    def make(uri: str, **options: Any) -> tuple[Any, Recorder]:
        recorder = Recorder()
        client = shell.connect(uri, event_listeners=[recorder], **options)
        clients.append(client)
        return client, recorder

    yield make
    for client in clients:
        shell.call(client.close)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Standalone]]:
    """Standalone servers by version, started when first asked for."""
    running: dict[str, Standalone] = {}

    def of_version(version: str) -> Standalone:
        if version not in running:
            running[version] = Standalone(version, tmp_path_factory.mktemp("standalone") / version)
        return running[version]

    yield of_version
    for server in running.values():
        server.close()


@pytest.fixture(scope="session")
def spec_uri(
    tmp_path_factory: pytest.TempPathFactory, standalone: Callable[[str], Standalone]
) -> Iterator[Callable[..., str]]:
    """The URI of a server of a version and topology, as a spec test asks for it.

    No other test reads from these servers: `failGetMoreAfterCursorCheckout` fails the next getMore, whoever sends it,
    and a stream that another test left waiting would use it up.
    """
    with closing(SharedReplicaSets(tmp_path_factory.mktemp("spec"))) as replica_sets:

        def uri(version: str, topology: str) -> str:
            return standalone(version).uri if topology == "single" else replica_sets.of_version(version).uri

        yield uri
