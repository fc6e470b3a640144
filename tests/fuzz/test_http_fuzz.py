"""Damaged requests at every HTTP endpoint, a process's own and the dashboard's: each is answered or ended, none fails.

`make fuzz INPUTS=1000000` is the long form.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dashboard_site import TOKEN, dashboard, free_port, write_settings
from fuzz.inputs import mutants
from gateway.test_many_watchers import resident_bytes
from tailrace.dashboard.web.endpoints import description
from tailrace.errors import SettingsError
from tailrace.monitor.endpoint import Site, serve_endpoint

INPUTS = int(os.environ.get("INPUTS", "400"))
SEED = int(os.environ.get("SEED", "1"))
MOST_GROWTH = 48 << 20


def requests(paths: list[str], actions: list[str]) -> list[bytes]:
    """Good requests of every endpoint, and some that servers have stumbled over."""
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nAccept: */*\r\n"
    body = '{"name": "orders", "reason": "why", "n": [[[1e400]]]}'
    posted = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    odd = ["//[", "/%00%ff", "/../../etc/passwd", "*", "/api/events?limit=" + "9" * 5_000, "/api/events/" + "9" * 5_000]
    made = [f"GET {path} HTTP/1.1\r\n{head}\r\n" for path in [*paths, *odd]]
    made += [f"POST {path} HTTP/1.1\r\n{posted}" for path in actions]
    deep = "[" * 30_000
    made += [
        f"POST {path} HTTP/1.0\r\n{head}Content-Type: application/json\r\nContent-Length: {len(deep)}\r\n\r\n{deep}"
        for path in actions
    ]
    return [each.encode() for each in made]


def answer(port: int, request: bytes) -> bytes:
    """Send a request and nothing more, and give the answer, without the whole of a stream that has no end."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65_536), b""))
        except TimeoutError:
            raise AssertionError(f"no answer to {request!r}") from None
        except OSError:  # ended by the other side, which may be its answer
            return b""


def attack(port: int, seeds: list[bytes]) -> None:
    for request in [*seeds, *islice(mutants(seeds, SEED, is_bson=False), INPUTS)]:
        status = answer(port, request)[9:12]
        assert not status.startswith(b"5") or status in (b"501", b"505"), request
    assert answer(port, b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")[9:12] == b"200"


@pytest.fixture
def endpoint() -> Iterator[int]:
    def act(body: Any) -> Any:
        if body.get("n") == 7:
            raise SettingsError("no")
        return {"done": str(body)[:100]}

    site = Site(pages={"/state": lambda: {"a": 1}}, actions={"/pause": act, "/resume": act}, token=TOKEN)
    with serve_endpoint(0, site=site) as port:
        yield port


@pytest.mark.timeout(36_000)
def test_requests_at_a_process(endpoint: int) -> None:
    seeds = requests(["/metrics", "/healthz", "/state", "/nothing"], ["/pause", "/resume", "/state"])
    attack(endpoint, seeds)
    before = resident_bytes()
    attack(endpoint, seeds)
    assert resident_bytes() - before < MOST_GROWTH


@pytest.mark.timeout(36_000)
def test_requests_at_the_dashboard(tmp_path: Path) -> None:
    nobody = free_port()
    file = write_settings(
        tmp_path,
        mongodb={"uri": f"mongodb://127.0.0.1:{nobody}/?serverSelectionTimeoutMS=200"},
        dashboard={"token": TOKEN},
    )
    with dashboard(file) as site:
        port = int(site.url.rpartition(":")[2])
        paths = [path for path in description()["paths"] if "stream" not in path]
        known = [
            path.format(number=1, name="a", entity="b", token="8265F0A1B2000000072B0229296E04", action="pause")
            for path in paths
        ]
        seeds = requests([*known, "/", "/static/page.js"], ["/api/actions/pause", "/api/actions/resume"])
        attack(port, seeds)
    assert "Traceback" not in (tmp_path / "dashboard.log").read_text()
