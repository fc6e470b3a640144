"""One server process: started under the guard, watched until it answers, paused, killed, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tailrace.errors import ServerDidNotStart
from tailrace.owned import GuardedProcess

_SECONDS_BETWEEN_PROBES = 0.05
_SECONDS_TO_FREEZE = 5.0
_SECONDS_TO_START = 300.0
"""Long, because a broker beside a busy neighbour needs minutes; a process that ends is noticed at once."""


class ServerProcess:
    """A server that runs in its folder, logs to a file there and never outlives this process.

    `command` is run as it is; `uid` is a user id to become first (PostgreSQL refuses to run as root).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        uid: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(part) for part in command]
        self._environment = {**os.environ, **(environment or {})}
        self._uid = uid
        self._folder = folder
        self._process: GuardedProcess[bytes] | None = None
        self.pid = 0

    @property
    def alive(self) -> bool:
        """Whether the server runs (a paused server does)."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the server ended by itself: its exit code, or minus the signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def launch(self) -> None:
        """Start the server without waiting for it."""
        with self.log.open("ab") as log:
            self._process = GuardedProcess(
                self._command,
                uid=self._uid,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._folder,
            )
        if not self._process.program_pid:
            raise self._did_not_start("could not be started")
        self.pid = self._process.program_pid

    def start(self, ready: Callable[[], bool], *, timeout: float = _SECONDS_TO_START) -> None:
        """Start the server and return when `ready()` says that it answers."""
        self.launch()
        self.wait_until(ready, timeout=timeout)

    def wait_until(self, ready: Callable[[], bool], *, timeout: float = _SECONDS_TO_START) -> None:
        """Return when `ready()` holds; an error with the log's end when the server dies or takes too long."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.alive:
                raise self._did_not_start("ended before it answered")
            if time.monotonic() > deadline:
                self.kill()
                raise self._did_not_start(f"did not answer within {timeout:.0f} s")
            time.sleep(_SECONDS_BETWEEN_PROBES)

    def stop(self, *, timeout: float = 15.0, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Ask the server to end, and kill it when it does not; no error if it ended already."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(with_signal)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait(30)
        self._process = None

    def children(self) -> list[int]:
        """The processes that the server has started itself and that still run."""
        try:
            return [int(child) for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except FileNotFoundError:
            return []

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _SECONDS_TO_FREEZE
        while self.alive and not self._all_threads_stopped() and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        return last_lines(self.log, 15)

    def _all_threads_stopped(self) -> bool:
        """Whether the kernel has stopped every thread; a signal is sent before it has taken effect."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _did_not_start(self, what: str) -> ServerDidNotStart:
        return ServerDidNotStart(f"{self.name} {what}; log: {self.log}\n{self.log_tail()}", log=str(self.log))


def last_lines(log: Path, count: int) -> str:
    """The end of a log; nothing when there is none."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.exists() else ""
