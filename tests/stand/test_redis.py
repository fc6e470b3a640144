from __future__ import annotations

from collections.abc import Callable

import pytest
import redis as client_library

from tailrace.stand import Redis
from tailrace.stand.redis import VERSION


def test_keeps_a_key(redis_server: Redis) -> None:
    with client_library.Redis.from_url(redis_server.url) as client:
        client.set("user:1", "ada")
        assert client.get("user:1") == b"ada"
        assert client.info("server")["redis_version"] == VERSION


def test_keeps_acknowledged_writes_over_a_crash(start_server: Callable[..., Redis]) -> None:
    server = start_server(Redis)
    port = server.port
    with client_library.Redis.from_url(server.url) as client:
        client.set("position", "82")
        server.kill()
        with pytest.raises(client_library.ConnectionError):
            client.get("position")
        server.restart()
        assert server.port == port
        assert client.get("position") == b"82"


def test_a_paused_server_is_silent_until_it_goes_on(start_server: Callable[..., Redis]) -> None:
    server = start_server(Redis)
    with client_library.Redis.from_url(server.url, socket_timeout=0.2, retry=None) as client:
        client.set("a", "1")
        server.pause()
        with pytest.raises(client_library.TimeoutError):
            client.get("a")
        assert server.alive
        server.resume()
        assert client.get("a") == b"1"


def test_options_reach_the_server(start_server: Callable[..., Redis]) -> None:
    server = start_server(Redis, {"maxmemory": "3mb"})
    with client_library.Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(3 * 1024 * 1024)}
