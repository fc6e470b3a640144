"""A token endpoint on loopback, as an OpenID provider has one: client credentials for a signed token, and its keys."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from listening import serving_http

KEY_ID = "of-the-tests"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenEndpoint:
    """Gives tokens that are good for `seconds`; counts them by client."""

    def __init__(self, clients: dict[str, str], seconds: int) -> None:
        self.clients = clients
        self.seconds = seconds
        self.given: list[str] = []
        self._key = rsa.generate_private_key(65537, 2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

    @property
    def jwks_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/jwks"

    def token(self, client: str) -> str:
        now = int(time.time())
        claims = {"sub": client, "aud": "kafka", "iat": now, "exp": now + self.seconds, "scope": "kafka"}
        header = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        parts = ".".join(_encoded(json.dumps(each).encode()) for each in (header, claims))
        return f"{parts}.{_encoded(self._key.sign(parts.encode(), padding.PKCS1v15(), SHA256()))}"

    def _keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        shown = {
            name: _encoded(value.to_bytes(size)) for name, value, size in (("n", numbers.n, 256), ("e", numbers.e, 3))
        }
        return {"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": KEY_ID, **shown}]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, endpoint._keys())

            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
                scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
                client, _, secret = (
                    base64.b64decode(encoded).decode().partition(":") if scheme == "Basic" else ("", "", "")
                )
                if body.get("grant_type") != ["client_credentials"] or endpoint.clients.get(client) != secret:
                    self._answer(401, {"error": "invalid_client"})
                    return
                endpoint.given.append(client)
                answer = {
                    "access_token": endpoint.token(client),
                    "token_type": "Bearer",
                    "expires_in": endpoint.seconds,
                }
                self._answer(200, answer)

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        return Handler

    @classmethod
    @contextmanager
    def serve(cls, clients: dict[str, str], *, seconds: int = 300) -> Iterator[TokenEndpoint]:
        made = cls(clients, seconds)
        with serving_http(made._server, "token-endpoint"):
            yield made
