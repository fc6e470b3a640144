"""The HTTP endpoint of a process: metrics for Prometheus, health for probes, its state, and what it may be asked to do.

Small on purpose: one request a connection, a bounded number of connections, a bounded body, and a time by which each
request is over, however slowly the other side sends. Actions are asked for by POST with a bearer token; without a
token in the settings there are none.
"""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder

from tailrace.errors import ControlRefused, Outcome, SettingsError, TailraceError
from tailrace.logs import get_logger
from tailrace.monitor.metrics import REGISTRY
from tailrace.owned import OwnedThread
from tailrace.settings import masked

_log = get_logger("tailrace.monitor")
LARGEST_BODY: Final = 64 * 1024
_DIGITS: Final = 18
"""No length has more; Python itself refuses to read a number of thousands of them."""
MOST_CONNECTIONS: Final = 32
SECONDS_PER_REQUEST: Final = 30.0

Page = Callable[[], Mapping[str, Any]]
"""Gives what a GET answers."""
Action = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Does what a POST asks for, by its body, and gives the answer; refuses by raising."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An action that somebody asks for, as far as it is known who."""

    path: str
    body: Mapping[str, Any]
    outcome: str
    """begun, refused (no such token) or failed."""
    address: str
    claimed: str | None
    """Whom the request says it is from, in the header `Tailrace-Actor`."""


def ignore(_: Asked) -> None:
    """Keep no account of actions."""


def healthy() -> str | None:
    """Give what is wrong with a process of which nothing is known but that it answers: nothing."""
    return None


@dataclass(frozen=True, slots=True)
class Site:
    """What a process answers beside its metrics."""

    pages: Mapping[str, Page] = field(default_factory=dict)
    actions: Mapping[str, Action] = field(default_factory=dict)
    token: str | None = None
    """Bearer token for actions; without one, nobody may ask for them."""
    asked: Callable[[Asked], None] = ignore
    """Called before every action; the action is not done when this raises."""
    problem: Callable[[], str | None] = healthy
    """Gives the reason why the process should be restarted; None when it should not."""


@contextmanager
def serve_endpoint(port: int, address: str = "127.0.0.1", site: Site | None = None) -> Iterator[int]:
    """Answer while the block runs; gives the port, which is a free one when 0 was asked for."""
    try:
        server = _Server(address, port, site or Site())
    except (OSError, OverflowError, UnicodeError) as error:
        message = f"metrics cannot be served at {address}:{port}: {getattr(error, 'strerror', error)}"
        raise SettingsError(message, hint="Choose another monitor.metrics_port, or monitor.metrics_address.") from None
    thread = OwnedThread(server.serve_forever, name="tailrace-endpoint", on_death=lambda _: 1.0)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


class _Server(ThreadingHTTPServer):
    """Answers in a thread for each connection, but for few at a time and none for long."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: str, port: int, site: Site) -> None:
        self.site = site
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._deadlines: dict[socket.socket, float] = {}
        self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for our own name, which may take minutes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection when there is room for it."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._deadlines[request] = time.monotonic() + SECONDS_PER_REQUEST
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._deadlines.pop(request, None)
            self._free.release()

    def service_actions(self) -> None:
        """End connections whose time is over; called twice a second."""
        now = time.monotonic()
        for connection, deadline in list(self._deadlines.items()):
            if now > deadline:
                self._deadlines.pop(connection, None)
                _shut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing when a peer disconnects in the middle of a request."""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself meanwhile


class _Handler(BaseHTTPRequestHandler):
    """One request; the connection ends with it."""

    server: _Server
    server_version = "tailrace"
    sys_version = ""
    timeout = 10.0

    def do_GET(self) -> None:
        """Give a page."""
        path, site = self._path, self.server.site
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, encode(REGISTRY), kind)
        elif path == "/healthz":
            self._send_health(site.problem())
        elif path in site.pages:
            page = site.pages[path]
            self._answer(lambda: page())
        else:
            self._refuse(path, wrong_method=path in site.actions)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Do what is asked for."""
        path, site = self._path, self.server.site
        if path in site.actions:
            action = site.actions[path]
            self._answer(lambda: self._act(path, action), HTTPStatus.ACCEPTED)
        else:
            self._refuse(path, wrong_method=path in {"/metrics", "/healthz", *site.pages})

    @property
    def _path(self) -> str:
        try:
            return urlsplit(self.path).path
        except ValueError:  # brackets that hold no address
            return self.path

    def _act(self, path: str, action: Action) -> Mapping[str, Any]:
        """Do an action, with an account of it before and, if it fails, after."""

        def report(outcome: str, body: Mapping[str, Any]) -> None:
            claimed = self.headers.get("Tailrace-Actor")
            self.server.site.asked(Asked(path, body, outcome, str(self.client_address[0]), claimed))

        try:
            body = self._body_of_one_who_may()
        except ControlRefused as refusal:
            if refusal.status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
                report("refused", {})
            raise
        report("begun", body)
        try:
            return action(body)
        except TailraceError:
            report("failed", body)
            raise

    def _body_of_one_who_may(self) -> Mapping[str, Any]:
        """Give the body of the request, of somebody who knows the token."""
        token = self.server.site.token
        if token is None:
            hint = "Set monitor.control_token to let those who know it do this."
            raise ControlRefused("actions are switched off", status=HTTPStatus.FORBIDDEN, hint=hint)
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            hint = "Send the header `Authorization: Bearer` with the value of monitor.control_token."
            raise ControlRefused("the token is missing or wrong", status=HTTPStatus.UNAUTHORIZED, hint=hint)
        return self._body()

    def _body(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            raise ControlRefused("the length of the body is not given", status=HTTPStatus.LENGTH_REQUIRED)
        if len(length) > _DIGITS or int(length) > LARGEST_BODY:
            message = f"a body has at most {LARGEST_BODY:,} bytes"
            raise ControlRefused(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise ControlRefused("the body is no JSON object", status=HTTPStatus.BAD_REQUEST)
        return body

    def _answer(self, make: Callable[[], Mapping[str, Any]], status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send what is made, or why it is not."""
        try:
            self._send_json(status, make())
        except ControlRefused as error:
            self._send_error(error.status, error)
        except TailraceError as error:
            retry = error.outcome is Outcome.RETRY
            self._send_error(HTTPStatus.SERVICE_UNAVAILABLE if retry else HTTPStatus.INTERNAL_SERVER_ERROR, error)
        except Exception as error:
            _log.warning("request_failed", path=self._path, error=masked(repr(error))[:300])
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, TailraceError("the request failed; the log says why"))

    def _refuse(self, path: str, *, wrong_method: bool) -> None:
        if wrong_method:
            refusal = ControlRefused(f"{self.command} is not for {path}", status=HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            refusal = ControlRefused("there is no such page", status=HTTPStatus.NOT_FOUND)
        self._send_error(refusal.status, refusal)

    def _send_health(self, problem: str | None) -> None:
        if problem is None:
            self._send_json(HTTPStatus.OK, {"healthy": True})
        else:
            self._send_json(HTTPStatus.SERVICE_UNAVAILABLE, {"healthy": False, "problem": problem})

    def _send_error(self, status: int, error: TailraceError) -> None:
        form = {"code": error.code, "message": masked(error.message), "hint": error.hint}
        self._send_json(status, form)

    def _send_json(self, status: int, form: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(form, allow_nan=False).encode() + b"\n", "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the base class refuses (no HTTP, another method) in the form of all other answers."""
        self.close_connection = True
        if not hasattr(self, "headers"):
            self.request_version = self.request_version or "HTTP/1.0"
            self.command = self.command or ""
        self._send_error(code, ControlRefused(message or HTTPStatus(code).phrase, status=code))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing for a request: Prometheus scrapes every few seconds."""
