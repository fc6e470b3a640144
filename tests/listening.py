"""A socket on loopback whose every client is served by a thread: the frame of servers and proxies that tests play."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tailrace.owned import OwnedThread
from waiting import SECONDS


class Listening(ABC):
    """Listens from its beginning to the end of its block."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def uri(self) -> str:
        return f"mongodb://{self.address}/?directConnection=true"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in [self._listener, *self._open]:
            each.close()

    @abstractmethod
    def _converse(self, client: socket.socket) -> None:
        """Serve one client; an error of its socket ends that."""

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            self._converse(client)
        except OSError:
            return


@contextmanager
def serving_http(server: ThreadingHTTPServer, name: str) -> Iterator[None]:
    """Have an HTTP server answer while the block runs."""
    thread = OwnedThread(server.serve_forever, name=name)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(SECONDS)
        server.server_close()
