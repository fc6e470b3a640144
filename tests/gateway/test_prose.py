"""The specification's prose tests, which our driver passes on servers, through the gateway before them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from driver import test_prose
from driver.conftest import connect, shell
from driver.test_prose import orders
from gateway.running_gateway import RunningGateway
from tailrace.gateway import GatewayOptions

__all__ = ["connect", "orders", "shell"]

globals().update(
    (name, test)
    for name, test in vars(test_prose).items()
    if name.startswith("test_") and "mongodb" in inspect.signature(test).parameters
)


class Front:
    """A gateway in the place of the replica set that a test expects."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._gateway = gateway
        self.primary = self

    @property
    def uri(self) -> str:
        return self._gateway.uri

    def client(self) -> Any:
        return self._gateway.client()

    @contextmanager
    def fail_point(self, name: str, mode: object, data: dict[str, Any]) -> Iterator[None]:
        with self.client() as client:
            client.admin.command({"configureFailPoint": name, "mode": mode, "data": data})
            yield
            client.admin.command({"configureFailPoint": name, "mode": "off"})


@pytest.fixture(scope="session")
def mongodb(request: pytest.FixtureRequest, shared_replica_sets: Any) -> Iterator[Front]:
    """A gateway before a server of the version that a test is run with."""
    upstream = shared_replica_sets.of_version(getattr(request, "param", "6.0.5"))
    with closing(RunningGateway(upstream.uri, GatewayOptions(test_commands=True))) as gateway:
        yield Front(gateway)
