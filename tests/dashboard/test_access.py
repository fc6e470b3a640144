"""Who may look and act, where the dashboard may listen, and what every answer says to browsers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dashboard_site import Site, running, write_settings
from tailrace.dashboard.web.access import Access, Guard
from tailrace.errors import SettingsError
from tailrace.settings import DashboardSettings
from waiting import wait_until

TOKEN = "a-token-for-the-page"
PATHS = ["/", "/static/main.js", "/healthz", "/api/state", "/metrics"]


def access(**settings: Any) -> Access:
    return Access.of(DashboardSettings.model_validate(settings))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"address": "0.0.0.0"}, "open to everybody"),
        ({"address": "0.0.0.0", "certificate": "c.pem"}, "open to everybody"),
        ({"address": "192.0.2.7", "token": TOKEN}, "in the clear"),
        ({"address": "::", "token": TOKEN}, "in the clear"),
        ({"address": "dash.example", "token": TOKEN}, "in the clear"),
        ({"behind_proxy": True}, "behind a proxy"),
    ],
)
def test_it_does_not_listen_where_it_would_be_open(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        access(**settings)


@pytest.mark.parametrize(
    ("settings", "guards_reads"),
    [
        ({}, False),
        ({"address": "::1"}, False),
        ({"address": "localhost", "token": TOKEN}, False),
        ({"address": "0.0.0.0", "token": TOKEN, "certificate": Path("c.pem")}, True),
        ({"address": "0.0.0.0", "token": TOKEN, "behind_proxy": True}, True),
        ({"token": TOKEN, "behind_proxy": True}, True),
    ],
)
def test_beyond_loopback_looking_needs_the_token_too(settings: dict[str, Any], guards_reads: bool) -> None:
    assert access(**settings).guards_reads is guards_reads


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        DashboardSettings.model_validate({"token": "short"})


async def _answer(_: Request) -> PlainTextResponse:
    return PlainTextResponse("data")


def ask(
    rules: Access, method: str, path: str, host: str = "127.0.0.1:8480", token: str | None = None
) -> httpx.Response:
    methods = ["GET", "POST"]
    app = Guard(Starlette(routes=[Route("/{path:path}", _answer, methods=methods)]), rules)
    headers = {"Host": host} | ({"Authorization": f"Bearer {token}"} if token else {})

    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(once())


@pytest.mark.parametrize("path", PATHS)
def test_on_loopback_everybody_may_look(path: str) -> None:
    assert ask(access(token=TOKEN), "GET", path).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_beyond_loopback_only_what_holds_no_data_is_open(path: str) -> None:
    rules = access(address="0.0.0.0", token=TOKEN, behind_proxy=True)
    is_open = not path.startswith(("/api", "/metrics"))
    assert ask(rules, "GET", path, "dash.example").status_code == (200 if is_open else 401)
    assert ask(rules, "GET", path, "dash.example", TOKEN).status_code == 200
    assert ask(rules, "GET", path, "dash.example", TOKEN + "x").status_code == (200 if is_open else 401)


def test_actions_always_need_the_token() -> None:
    path = "/api/actions/pause"
    assert ask(access(), "POST", path).status_code == 403
    answer = ask(access(token=TOKEN), "POST", path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["hint"]
    assert ask(access(token=TOKEN), "POST", path, token="wrong").status_code == 401
    assert ask(access(token=TOKEN), "POST", path, token=TOKEN).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8480", "", "[::"])
def test_a_foreign_name_for_loopback_opens_nothing(host: str) -> None:
    assert ask(access(token=TOKEN), "GET", "/api/state", host).status_code == 421
    assert ask(access(token=TOKEN), "POST", "/api/actions/pause", host, TOKEN).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8480", "127.0.0.1", "[::1]:8480"])
def test_the_names_of_loopback_are_ours(host: str) -> None:
    assert ask(access(), "GET", "/api/state", host).status_code == 200


@pytest.mark.parametrize(("method", "path", "host"), [("GET", "/", "localhost"), ("GET", "/api/state", "evil.example"),
                                                     ("POST", "/api/actions/pause", "localhost")])  # fmt: skip
def test_every_answer_has_the_safe_headers(method: str, path: str, host: str) -> None:
    headers = ask(access(), method, path, host).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in headers


def test_with_tls_browsers_are_told_to_stay_with_it() -> None:
    rules = access(address="0.0.0.0", token=TOKEN, certificate="c.pem")
    assert "strict-transport-security" in ask(rules, "GET", "/", "dash.example").headers


def test_a_certificate_is_renewed_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "page.pem"

    def write() -> ssl.SSLContext:
        authority, new, trusting = trustme.CA(), tmp_path / "new.pem", ssl.create_default_context()
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(new))
        new.replace(file)
        authority.configure_trust(trusting)
        return trusting

    def is_known_to(context: ssl.SSLContext) -> bool:
        try:
            return httpx.get(f"{site.url}/healthz", verify=context, timeout=20).status_code == 200
        except httpx.ConnectError:
            return False

    old = write()
    settings = write_settings(tmp_path, dashboard={"certificate": file}, capture={"sink": "stdout:"})
    with running("dashboard", settings, "--port", "0") as process:
        assert process.stdout is not None
        site = Site(process.stdout.readline().split()[-1].rstrip("/"), process)
        wait_until(lambda: is_known_to(old), "the first certificate")
        new = write()
        wait_until(lambda: is_known_to(new), "the new certificate")
        assert not is_known_to(old)
