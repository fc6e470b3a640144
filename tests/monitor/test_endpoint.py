"""The HTTP endpoint, asked as Prometheus, a probe, a dashboard and somebody impolite would ask it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tailrace.errors import ControlRefused, ServerUnreachable, SettingsError
from tailrace.monitor import Site, endpoint, serve_endpoint

TOKEN = "a token that nobody guesses"


class Answer:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def form(self) -> Any:
        return json.loads(self.body)


def ask(port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        text = body if isinstance(body, str | None) else json.dumps(body)
        connection.request(method, path, text, dict(headers or {}))
        return Answer(connection.getresponse())
    finally:
        connection.close()


def act(port: int, path: str, body: object = None, token: str = TOKEN) -> Answer:
    return ask(port, "POST", path, body, {"Authorization": f"Bearer {token}"})


def refuse(_: Mapping[str, Any]) -> Mapping[str, Any]:
    raise ControlRefused("not now", status=409)


def unreachable() -> Mapping[str, Any]:
    raise ServerUnreachable("nobody answers at mongodb://ada:secret@db/")


def broken() -> Mapping[str, Any]:
    raise ValueError("mongodb://ada:secret@db/")


@pytest.fixture
def port() -> Iterator[int]:
    site = Site(
        pages={"/state": lambda: {"state": "live"}, "/away": unreachable, "/broken": broken},
        actions={"/echo": lambda body: {"got": dict(body)}, "/refuse": refuse},
        token=TOKEN,
    )
    with serve_endpoint(0, site=site) as number:
        yield number


def test_pages_are_json_and_the_metrics_are_for_prometheus(port: int) -> None:
    assert ask(port, "GET", "/state?ignored=1").form == {"state": "live"}
    metrics = ask(port, "GET", "/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=")
    assert b"process_resident_memory_bytes" in metrics.body
    open_metrics = ask(port, "GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.body.endswith(b"# EOF\n")
    assert ask(port, "HEAD", "/metrics").body == b""


def test_a_probe_is_told_what_is_wrong() -> None:
    problem: str | None = None
    with serve_endpoint(0, site=Site(problem=lambda: problem)) as port:
        assert ask(port, "GET", "/healthz").form == {"healthy": True}
        problem = "it hangs"
        answer = ask(port, "GET", "/healthz")
        assert (answer.status, answer.form) == (503, {"healthy": False, "problem": "it hangs"})


def test_an_action_is_for_those_who_know_the_token(port: int) -> None:
    answer = act(port, "/echo", {"dry_run": True})
    assert (answer.status, answer.form) == (202, {"got": {"dry_run": True}})
    assert act(port, "/echo").form == {"got": {}}
    for wrong in ("", "another token", TOKEN + "!"):
        answer = act(port, "/echo", token=wrong)
        assert (answer.status, answer.form["code"]) == (401, "control-refused")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert ask(port, "POST", "/echo").status == 401


def test_without_a_token_in_the_settings_nobody_may_act() -> None:
    with serve_endpoint(0, site=Site(actions={"/echo": lambda body: body})) as port:
        answer = act(port, "/echo")
    assert answer.status == 403
    assert set(answer.form) == {"code", "message", "hint"}
    assert "monitor.control_token" in answer.form["hint"]


def test_what_is_wrong_with_a_request_is_said(port: int) -> None:
    found = {
        "no such page": ask(port, "GET", "/nowhere").status,
        "an action by GET": ask(port, "GET", "/echo").status,
        "a page by POST": act(port, "/state").status,
        "another method": ask(port, "DELETE", "/state").status,
        "no JSON": act(port, "/echo", "{").status,
        "no object": act(port, "/echo", [1]).status,
        "too large": act(port, "/echo", {"text": "x" * endpoint.LARGEST_BODY}).status,
        "refused": act(port, "/refuse").status,
        "a server that is away": ask(port, "GET", "/away").status,
        "our own mistake": ask(port, "GET", "/broken").status,
    }
    assert found == {
        "no such page": 404,
        "an action by GET": 405,
        "a page by POST": 405,
        "another method": 501,
        "no JSON": 400,
        "no object": 400,
        "too large": 413,
        "refused": 409,
        "a server that is away": 503,
        "our own mistake": 500,
    }


def test_no_answer_holds_a_password(port: int) -> None:
    for path in ("/away", "/broken"):
        assert b"secret" not in ask(port, "GET", path).body


def test_one_who_sends_nothing_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SECONDS_PER_REQUEST", 0.2)
    with serve_endpoint(0) as port, socket.create_connection(("127.0.0.1", port), timeout=120) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert slow.recv(100) == b"", "the connection is closed without an answer"


def test_one_who_opens_too_many_connections_leaves_room_when_they_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_CONNECTIONS", 2)
    with serve_endpoint(0) as port:
        held = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(3)]
        assert held[2].recv(100) == b"", "there was no room for it"
        for connection in held:
            connection.close()
        for _ in range(100):
            try:
                assert ask(port, "GET", "/healthz").status == 200
                return
            except (OSError, http.client.HTTPException):
                continue
    pytest.fail("the places were never freed")


def test_what_is_no_http_is_answered_or_dropped_without_harm(port: int) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            connection.sendall(sent)
            while connection.recv(1000):
                pass
    assert ask(port, "GET", "/healthz").status == 200


def test_the_endpoint_is_gone_after_its_block() -> None:
    with serve_endpoint(0) as port:
        pass
    with pytest.raises(OSError, match="refused"):
        ask(port, "GET", "/metrics")


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with serve_endpoint(0) as port, pytest.raises(SettingsError, match=f"127.0.0.1:{port}"), serve_endpoint(port):
        pass
