"""What Kafka, Redis and PostgreSQL have in common: one process with a folder of its own."""

from __future__ import annotations

import socket
from typing import ClassVar, Self

from tailrace.stand.server import Server, ServerFolder

_SECONDS_TO_ANSWER = 2.0


class SingleServer(Server):
    """A server that is complete with one process.

    A subclass has a class method `start` that makes the server and then calls `_started`.
    """

    name: ClassVar[str]

    def __init__(self, folder: ServerFolder) -> None:
        super().__init__()
        self._folder = folder
        self._log_file = folder.path / f"{self.name}.log"

    def close(self) -> None:
        """End it, remove its data and give its port back."""
        super().close()
        self._folder.remove()

    def _started(self) -> Self:
        """Prepare and start a new server, or leave nothing behind."""
        try:
            self._prepare()
            self.launch()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def _prepare(self) -> None:
        """Make what the server needs in its folder before its first start; by default nothing."""
        return


def ask(port: int, request: bytes, length: int) -> bytes:
    """Send one request over a new connection and read an answer of up to `length` bytes; empty if nobody answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS_TO_ANSWER) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                return answer.read(length)
    except OSError:
        return b""
