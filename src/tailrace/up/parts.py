"""A part of the whole: a server of the stand, or a program of ours. Both are processes that end with this one."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

from tailrace.stand import ReplicaSet
from tailrace.stand.process import ServerProcess
from tailrace.stand.server import Server

Ready = Callable[[float, str], bool]
"""Says whether a program does its work, from the time it was started (seconds since 1970) and what it logged since."""

_SECONDS_TO_STOP = 3.0
_POLL_SECONDS = 0.3


class Stage(IntEnum):
    """When a part is stopped: what writes first, then what carries, then what the others live on."""

    LOAD = 1
    PIPELINE = 2
    SERVER = 3


class Part(ABC):
    """Something that is started, watched and, when it dies, started again on the same data and ports."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name = name
        self.stage = stage

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process id; 0 before the first start."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether its process runs."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """How it ended: the exit code, or minus the signal."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it answers; empty for a part that nobody connects to."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """Where it logs."""

    @abstractmethod
    def start(self) -> None:
        """Start it, for the first time or again, and return when it does its work."""

    @abstractmethod
    def stop(self) -> None:
        """End it, whatever it does."""


class Program(Part):
    """A program in a process of its own, ready when `ready` holds."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: Ready,
        stage: Stage = Stage.PIPELINE,
        environment: Mapping[str, str] | None = None,
        address: str = "",
        timeout: float = 60.0,
    ) -> None:
        super().__init__(name, stage)
        self._process = ServerProcess(name, command, log=log, environment=environment)
        self._ready = ready
        self._address = address
        self._timeout = timeout

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.alive

    @property
    def exit_code(self) -> int | None:
        """How it ended."""
        return self._process.exit_code

    @property
    def address(self) -> str:
        """Where it answers."""
        return self._address

    @property
    def log(self) -> Path:
        """Where it logs; runs follow one another in the same file."""
        return self._process.log

    def start(self) -> None:
        """Start it and wait until it does its work."""
        self._process.stop()
        began, logged = time.time(), self.log.stat().st_size if self.log.exists() else 0

        next_poll = 0.0

        def ready() -> bool:
            nonlocal next_poll
            if time.monotonic() < next_poll:
                return False
            with self.log.open("rb") as log:
                log.seek(logged)
                answer = self._ready(began, log.read().decode(errors="replace"))
            next_poll = time.monotonic() + _POLL_SECONDS
            return answer

        self._process.start(ready, timeout=self._timeout)

    def stop(self) -> None:
        """Ask it to end, and kill it when it takes too long."""
        self._process.stop(timeout=_SECONDS_TO_STOP)


class LocalServer(Part):
    """A server of the stand, made at the first start and kept on its port and data afterwards."""

    def __init__(self, name: str, make: Callable[[], ReplicaSet | Server], log: Path) -> None:
        super().__init__(name, Stage.SERVER)
        self._make = make
        self._made: ReplicaSet | Server | None = None
        self._log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return 0 if self._made is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._made is not None and self._process.alive

    @property
    def exit_code(self) -> int | None:
        """Unknown: a server of the stand is not meant to end."""
        return None

    @property
    def address(self) -> str:
        """Its URI, or `host:port` where it has none."""
        if self._made is None:
            return ""
        return self._made.uri if isinstance(self._made, ReplicaSet) else self._made.address

    @property
    def log(self) -> Path:
        """Where it logs."""
        return self._log if self._made is None else self._process.log

    def start(self) -> None:
        """Fetch, make and start it, or start it again."""
        if self._made is None:
            self._made = self._make()
            return
        self._process.restart()
        if isinstance(self._made, ReplicaSet):
            _ = self._made.primary  # waits for the election

    def stop(self) -> None:
        """End it at once: its data go with it."""
        if self._made is not None:
            self._made.close()

    @property
    def _process(self) -> Server:
        assert self._made is not None
        return self._made.nodes[0] if isinstance(self._made, ReplicaSet) else self._made
