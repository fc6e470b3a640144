"""One server process: started under a guardian, watched until it answers, paused, killed, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tailrace.errors import ServerDidNotStart

_GUARDIAN = Path(__file__).with_name("guardian.py")
_SECONDS_BETWEEN_PROBES = 0.05
_SECONDS_TO_FREEZE = 5.0


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
        self._uid = -1 if uid is None else uid
        self._folder = folder
        self._guardian: subprocess.Popen[bytes] | None = None
        self._owner_pipe = -1
        self.pid = 0

    @property
    def alive(self) -> bool:
        """Whether the server runs (a paused server does)."""
        return self._guardian is not None and self._guardian.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the server ended by itself: its exit code, or minus the signal; None while it runs."""
        code = None if self._guardian is None else self._guardian.poll()
        return code if code is None or code < 256 - signal.NSIG else code - 256

    def launch(self) -> None:
        """Start the server without waiting for it."""
        owner_read, owner_write = os.pipe()
        status_read, status_write = os.pipe()
        guardian = [sys.executable, "-I", "-S", str(_GUARDIAN)]
        arguments = [str(owner_read), str(status_write), str(self._uid)]
        with self.log.open("ab") as log:
            self._guardian = subprocess.Popen(
                [*guardian, *arguments, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._folder,
                pass_fds=(owner_read, status_write),
                start_new_session=True,
            )
        self._owner_pipe = owner_write
        os.close(owner_read)
        os.close(status_write)
        with open(status_read, "rb") as status:
            line = status.readline()
        if not line:
            raise self._did_not_start("could not be started")
        self.pid = int(line)

    def start(self, ready: Callable[[], bool], *, timeout: float = 60.0) -> None:
        """Start the server and return when `ready()` says that it answers."""
        self.launch()
        self.wait_until(ready, timeout=timeout)

    def wait_until(self, ready: Callable[[], bool], *, timeout: float = 60.0) -> None:
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
        if self._guardian is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(with_signal)
        try:
            self._guardian.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        if self._guardian is None:
            return
        self._signal(signal.SIGKILL)
        self._guardian.wait(30)
        self._forget()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _SECONDS_TO_FREEZE
        while self.alive and not self._all_threads_stopped() and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the server's log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _all_threads_stopped(self) -> bool:
        """Whether the kernel has stopped every thread; a signal is sent before it has taken effect."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)

    def _signal(self, number: signal.Signals) -> None:
        if not self.alive:
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def _forget(self) -> None:
        self._guardian = None
        if self._owner_pipe >= 0:
            os.close(self._owner_pipe)
            self._owner_pipe = -1

    def _did_not_start(self, what: str) -> ServerDidNotStart:
        return ServerDidNotStart(f"{self.name} {what}; log: {self.log}\n{self.log_tail()}", log=str(self.log))
