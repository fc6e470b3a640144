"""Ask an HTTP endpoint of ours: one request, a bounded answer, a clear error. Redirects are not followed."""

from __future__ import annotations

import http.client
import json
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


def fetch(
    url: str,
    path: str,
    *,
    post: Mapping[str, Any] | None = None,
    bearer: str | None = None,
    timeout: float = _SECONDS_TO_ANSWER,
) -> Answer:
    """GET a path of an endpoint, or POST JSON to it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{masked(url)} is no http address", hint="It looks like http://127.0.0.1:9464.")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout)
    headers = {"User-Agent": "tailrace-dashboard", "Accept": "application/json, text/plain"}
    if bearer is not None:
        headers["Authorization"] = f"Bearer {bearer}"
    body = None
    if post is not None:
        headers["Content-Type"] = "application/json"
        body = json.dumps(post).encode()
    try:
        connection.request("GET" if post is None else "POST", f"{parts.path.rstrip('/')}{path}", body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(_LARGEST_ANSWER))
    except TimeoutError:
        raise ServerUnreachable(f"{place_of(url)} does not answer within {timeout:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "strerror", None) or type(error).__name__
        raise ServerUnreachable(f"nobody answers at {place_of(url)}: {cause}") from None
    finally:
        connection.close()


def place_of(url: str) -> str:
    """Give the address of an endpoint as it may be shown: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
