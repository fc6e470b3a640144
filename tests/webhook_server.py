"""A webhook receiver on loopback that answers as it is told and keeps what it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from waiting import SECONDS


class Hook:
    """What the server answers, in order, what it got, and what it does meanwhile."""

    def __init__(self, *answers: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.answers = list(answers)
        self.meanwhile = meanwhile
        self.got: list[dict[str, Any]] = []


@contextmanager
def serving(hook: Hook) -> Iterator[str]:
    """Serve the hook; gives its URL, the path of which is a secret."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            hook.meanwhile()
            self.send_response(hook.answers.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks/very-secret"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=SECONDS)
