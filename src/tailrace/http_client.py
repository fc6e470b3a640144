"""The one HTTP client: bounded answers, a timeout, clear errors. Redirects are not followed.

`fetch` makes one request; who sends many to one address (the webhook sink) keeps a `connection_to` it. Alerts alone are
posted by `urllib`, because that goes through the proxy of the environment.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tailrace.errors import ServerUnreachable, SettingsError
from tailrace.settings import masked

_SECONDS_TO_ANSWER = 2.0
_LARGEST_ANSWER = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint answered."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Read the body as JSON; an empty object when it is none."""
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            return {}


def connection_to(url: str, timeout: float, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
    """Give a connection to the server of an address; it is opened by the first request."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{masked(url)} is no http address", hint="It looks like http://127.0.0.1:9464.")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=tls)


def fetch(
    url: str,
    path: str = "",
    *,
    post: Mapping[str, Any] | None = None,
    bearer: str | None = None,
    actor: str | None = None,
    timeout: float = _SECONDS_TO_ANSWER,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """GET a path of an endpoint, or POST JSON to it."""
    connection = connection_to(url, timeout, tls)
    headers = {"User-Agent": "tailrace", "Accept": "application/json, text/plain"}
    if bearer is not None:
        headers["Authorization"] = f"Bearer {bearer}"
    if actor is not None:
        headers["Tailrace-Actor"] = actor
    body = None
    if post is not None:
        headers["Content-Type"] = "application/json"
        body = json.dumps(post).encode()
    try:
        connection.request("GET" if post is None else "POST", f"{urlsplit(url).path.rstrip('/')}{path}", body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(_LARGEST_ANSWER))
    except TimeoutError:
        raise ServerUnreachable(f"{location_of(url)} does not answer within {timeout:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "strerror", None) or type(error).__name__
        raise ServerUnreachable(f"no server answers at {location_of(url)}: {cause}") from None
    finally:
        connection.close()


def location_of(url: str) -> str:
    """Give the address of an endpoint as it may be shown: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
