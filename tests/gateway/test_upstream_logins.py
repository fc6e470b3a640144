"""How a gateway logs in to the server that it stands before, by each mechanism; its clients log in as themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gateway.running_gateway import RunningGateway
from mongodb_logins import MECHANISMS, TOKEN_FILE, Logins, guarded_server


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with guarded_server(tmp_path_factory.mktemp("upstream")) as made:
        made.server.add_user("ann", "secret", [{"role": "read", "db": "shop"}])
        yield made


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_gateway_logs_in_upstream(
    logins: Logins, start_gateway: Callable[..., RunningGateway], monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    monkeypatch.setenv(TOKEN_FILE, str(logins.token_file))
    gateway = start_gateway(logins.uris[mechanism])
    with (
        logins.server.client() as root,
        gateway.client(username="ann", password="secret") as reader,
        reader.shop.orders.watch() as stream,
    ):
        root.shop.orders.insert_one({"_id": mechanism})
        assert next(stream)["documentKey"] == {"_id": mechanism}
        assert len(gateway.gateway.cursors) == 1, "the gateway serves it, not the server"
    if mechanism in logins.scripted:
        assert logins.scripted[mechanism].logins
