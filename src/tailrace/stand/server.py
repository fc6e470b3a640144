"""One server process: its port, and what a test may do to it."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from tailrace.owned.closeable import Closeable
from tailrace.stand.ports import reserve_port
from tailrace.stand.process import ServerProcess


class Server(Closeable):
    """A server of one process. Its port and data stay the same over kills and restarts.

    A subclass makes `_process` in its constructor and says how to ask the server whether it answers.
    """

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self._port = reserve_port()
        self._process: ServerProcess

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
        return self._process.log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs; a paused one does."""
        return self._process.alive

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._process.launch()

    def wait_ready(self) -> None:
        """Return when the server answers."""
        self._process.wait_until(self._answers)

    def restart(self) -> None:
        """Start it again on the same data and port, stopping it first when it runs."""
        self.stop()
        self.launch()
        self.wait_ready()

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
        """End it and give its port back."""
        self._process.kill()
        self._port.release()

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server answers a request now."""


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """A folder that is removed with its server when we made it, and only emptied of data when given to us."""

    path: Path
    ours: bool

    @classmethod
    def make(cls, name: str, chosen: Path | None = None) -> ServerFolder:
        """`name` inside the chosen folder, or a new temporary folder."""
        if chosen is None:
            path = Path(tempfile.mkdtemp(prefix=f"tailrace-{name}-"))
            path.chmod(0o711)
            return cls(path, ours=True)
        path = chosen / name
        path.mkdir(parents=True)
        return cls(path, ours=False)

    def remove(self) -> None:
        """Remove everything, or, in a folder given to us, everything but the logs."""
        if self.ours:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for path in sorted(self.path.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.suffix != ".log" and not path.is_dir():
                path.unlink(missing_ok=True)


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
