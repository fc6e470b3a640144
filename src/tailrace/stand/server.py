"""One server process: its port, and what a test may do to it."""

from __future__ import annotations

import signal
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from tailrace.stand.closeable import Closeable
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
