"""What Kafka, Redis and PostgreSQL have in common: one process with a folder, a port and a probe."""

from __future__ import annotations

import signal
import socket
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tailrace.stand.folder import ServerFolder
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess

_SECONDS_TO_ANSWER = 2.0


class SingleServer(ABC):
    """A server of one process. Its port and data stay the same over kills and restarts.

    A subclass makes the process in its constructor, says how to ask the server whether it answers, and has a
    class method `start` that ends with `_started`.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: ServerFolder) -> None:
        self._folder = folder
        self._port = reserve_port()
        self._process: ServerProcess

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Its loopback port."""
        return self._port.number

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Where it writes its log."""
        return self._folder.path / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs; a paused one does."""
        return self._process.alive

    def restart(self) -> None:
        """Start it again on the same data and port, stopping it first when it runs."""
        self.stop()
        self._process.start(self._answers)

    def stop(self) -> None:
        """End it cleanly."""
        self._process.stop(with_signal=self.stop_signal)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self._process.kill()

    def pause(self) -> None:
        """Freeze it (SIGSTOP); its connections stay open and nothing is answered."""
        self._process.pause()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._process.resume()

    def close(self) -> None:
        """End it, remove its data and give its port back."""
        self._process.kill()
        self._folder.remove()
        self._port.release()

    def _started(self) -> Self:
        """Start the process of a new server, or leave nothing behind."""
        try:
            self._process.start(self._answers)
        except BaseException:
            self.close()
            raise
        return self

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server answers a request now."""


def ask(port: int, request: bytes, length: int) -> bytes:
    """Send one request over a new connection and read an answer of up to `length` bytes; empty if nobody answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS_TO_ANSWER) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                return answer.read(length)
    except OSError:
        return b""
