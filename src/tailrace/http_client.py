"""The one HTTP client: bounded answers, a timeout, clear errors. Redirects are not followed.

`fetch` makes one request; who sends many to one address (the webhook sink) keeps a `connection_to` it. Alerts alone are
posted by `urllib`, because that goes through the proxy of the environment.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tailrace.errors import ServerUnreachable, SettingsError
from tailrace.settings import masked

T = TypeVar("T")
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


def connection_to(
    url: str, timeout: float, tls: ssl.SSLContext | None = None, address: str | None = None
) -> http.client.HTTPConnection:
    """Give a connection to the server of an address; it is opened by the first request.

    `address` is the one to use of those that its name has (`addresses_of`).
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{masked(url)} is no http address", hint="It looks like http://127.0.0.1:9464.")
    if parts.scheme == "http":
        return http.client.HTTPConnection(address or parts.hostname, parts.port or 80, timeout=timeout)
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
    address: str | None = None,
) -> Answer:
    """GET a path of an endpoint, or POST JSON to it."""
    connection = connection_to(url, timeout, tls, address)
    headers = {
        "Host": urlsplit(url).netloc.rpartition("@")[2],
        "User-Agent": "tailrace",
        "Accept": "application/json, text/plain",
    }
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


def addresses_of(url: str) -> list[str]:
    """Give the addresses of the host of an endpoint, at least one; a certificate is for its name, which stays then."""
    parts = urlsplit(url)
    name = parts.hostname or ""
    if parts.scheme != "http":
        return [name]
    try:
        found = socket.getaddrinfo(name, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return [name]  # connecting says what is wrong with it
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def first_that(addresses: Sequence[str], ask: Callable[[str], T], is_wanted: Callable[[T], bool]) -> tuple[str, T]:
    """Ask addresses one after the other; gives the first answer that is wanted, else the last, with its address."""
    found: tuple[str, T] | None = None
    failure: ServerUnreachable | None = None
    for address in addresses:
        try:
            found = address, ask(address)
        except ServerUnreachable as error:
            failure = error
        else:
            if is_wanted(found[1]):
                return found
    if found is not None:
        return found
    assert failure is not None
    raise failure


def location_of(url: str) -> str:
    """Give the address of an endpoint as it may be shown: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
