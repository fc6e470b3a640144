"""Processes of the product as a service manager runs them: started again whenever they end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.owned import GuardedProcess, OwnedThread

_SECONDS_UNTIL_RESTART = 0.3
_SECONDS_TO_END = 60


class Service:
    """A command that is run again when it ends, until it is stopped; its exit codes and its log are kept."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.exits: list[int] = []
        """How it ended, each time it was not asked to: an exit code, or minus the signal."""
        self._command = list(command)
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._stopping = threading.Event()
        self._allowed = threading.Event()
        self._allowed.set()
        self._process: GuardedProcess[bytes] | None = None
        self._keeper = OwnedThread(self._keep, name=f"service {name}")

    @property
    def pid(self) -> int:
        """The program's process; 0 while there is none."""
        return self._process.program_pid if self._process else 0

    def start(self) -> None:
        """Run it, and keep it running."""
        self._keeper.start()

    def kill(self) -> None:
        """SIGKILL; it is started again."""
        if self._process:
            self._process.kill()

    def hold(self) -> None:
        """SIGKILL; it is started again by `release` alone."""
        self._allowed.clear()
        self.kill()
        if self._process:
            self._process.wait()

    def release(self) -> None:
        """Let it be started again."""
        self._allowed.set()

    def pause(self) -> None:
        """SIGSTOP."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it for good."""
        self._stopping.set()
        self._allowed.set()
        self.resume()
        if self._process:
            self._process.terminate()
        if not self._keeper.join(_SECONDS_TO_END):
            self.kill()
            self._keeper.join(_SECONDS_TO_END)

    def log_tail(self, lines: int = 12) -> str:
        """The end of what it logged."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def _keep(self) -> None:
        while self._allowed.wait() and not self._stopping.is_set():
            with self.log.open("ab") as log:
                self._process = GuardedProcess(
                    self._command,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            code = self._process.wait()
            if not self._stopping.is_set():
                self.exits.append(code)
                time.sleep(_SECONDS_UNTIL_RESTART)
