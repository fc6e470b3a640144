"""A scripted HTTP endpoint in the place of a schema registry, for answers that a real one gives rarely or never.

What it does by itself (schemas are kept, numbered and given back) is the least that the formats need; what real
registries do is seen in `make registry`.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waiting import SECONDS


def answer(status: int, body: bytes | str | Any = b"", *headers: str, length: int | None = None) -> bytes:
    """Give the bytes of an answer; anything but bytes and text is written as JSON."""
    content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    size = len(content) if length is None else length
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Length: {size}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


class ScriptedRegistry:
    """What it is asked, and what it answers to it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Method and path of each request."""
        self.script: list[tuple[str, bytes]] = []
        """Answers for the next requests with this method, each for one."""
        self.always: dict[str, bytes] = {}
        """Answers for all requests with this method."""
        self.schemas: dict[str, list[str]] = {}

    def answer_to(self, method: str, path: str, body: bytes) -> bytes:
        """Give the scripted answer, or what a registry would say."""
        self.asked.append(f"{method} {path}")
        if self.script and self.script[0][0] == method:
            return self.script.pop(0)[1]
        if method in self.always:
            return self.always[method]
        if path == "/config":
            return answer(200, {"compatibilityLevel": "BACKWARD"})
        if method == "PUT":
            return answer(200, json.loads(body))
        known = self.schemas.setdefault(path.split("/")[2], [])
        if method == "POST":
            known.append(json.loads(body)["schema"])
            return answer(200, {"id": len(known)})
        if not known:
            return answer(404, {"error_code": 40401, "message": "Subject not found."})
        return answer(200, {"id": len(known), "version": len(known), "schema": known[-1]})


@contextmanager
def serving(registry: ScriptedRegistry) -> Iterator[str]:
    """Serve a script; gives its URL."""

    class Handler(socketserver.StreamRequestHandler):
        timeout = SECONDS

        def handle(self) -> None:
            method, path, _ = self.rfile.readline().decode().split(" ", 2)
            length = 0
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            self.wfile.write(registry.answer_to(method, path, self.rfile.read(length)))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of clients that have read enough."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=SECONDS)
