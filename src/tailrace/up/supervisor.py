"""Keeps parts running: starts each again when it dies, gives up when that does not help, and stops all in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tailrace.errors import PartGaveUp, TailraceError
from tailrace.owned import OwnedThread, run_together
from tailrace.owned.closeable import Closeable
from tailrace.retry import Backoff, RetryPolicy
from tailrace.stand.process import last_lines
from tailrace.up.parts import Part, Stage

POLICY = RetryPolicy(first=0.5, longest=15.0, budget=90.0)
"""How soon a part is started again, and for how long it may fail before it is stopped for good."""

_HOPELESS = {64: "its settings are wrong", 75: "history is lost", 78: "something has to be changed first"}
"""Exit codes that starting again cannot mend."""
_SECONDS_TO_BE_STABLE = 30.0
_POLL_SECONDS = 0.1
_LINES_OF_LOG = 12
_SECONDS_TO_END = 4.0


class State(StrEnum):
    """What a part does at the moment."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"
    GAVE_UP = "gave up"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Report:
    """One change in the life of a part, as it is shown."""

    part: str
    state: State
    seconds: float
    """How long the state before this one took."""
    pid: int
    address: str
    log: Path
    starts: int
    message: str = ""


Notify = Callable[[Report], None]


class PartRunner:
    """Keeps one part running, from a thread of its own."""

    def __init__(self, part: Part, notify: Notify, stopping: threading.Event, policy: RetryPolicy = POLICY) -> None:
        self.part = part
        self.ready = threading.Event()
        """Set at the first time that the part was up."""
        self.failure: PartGaveUp | None = None
        self.state = State.STARTING
        self._notify = notify
        self._stopping = stopping
        self._backoff = Backoff(policy)
        self._starts = 0
        self._changed = time.monotonic()
        self._thread = OwnedThread(self._run, name=f"keep-{part.name}", on_death=self._died)

    def begin(self) -> None:
        """Start the part and go on keeping it."""
        self._thread.start()

    def end(self) -> None:
        """Stop the part; the supervisor has said before that all is to stop."""
        self.part.stop()
        self._thread.join(_SECONDS_TO_END)
        if self.part.alive:  # the thread was about to start it
            self.part.stop()
        self._report(State.STOPPED)

    def _run(self) -> None:
        while not self._stopping.is_set():
            trouble = self._start() or self._watch()
            if self._stopping.is_set():
                return
            hopeless = _HOPELESS.get(self.part.exit_code or 0)
            pause = None if hopeless else self._backoff.failed()
            if pause is None:
                self._give_up(f"{trouble}; {hopeless or f'it failed {self._backoff.failures} times in a row'}")
                return
            self._report(State.DOWN, f"{trouble}; next start in {pause:.1f} s")
            self._stopping.wait(pause)

    def _died(self, error: BaseException) -> None:
        self._give_up(f"nobody keeps it any more: {error!r}")

    def _start(self) -> str | None:
        """Start the part; give what went wrong."""
        self._starts += 1
        self._report(State.STARTING)
        try:
            self.part.start()
        except Exception as error:  # whatever keeps a part from starting, the others go on
            text = error.message if isinstance(error, TailraceError) else f"{type(error).__name__}: {error}"
            return (text.splitlines() or [""])[0].removeprefix(f"{self.part.name} ")
        self._report(State.UP)
        self.ready.set()
        return None

    def _watch(self) -> str:
        """Wait until the part dies, or all is to stop; give how it died."""
        began = time.monotonic()
        while self.part.alive and not self._stopping.wait(_POLL_SECONDS):
            if time.monotonic() - began > _SECONDS_TO_BE_STABLE:
                self._backoff.progressed()
        code = self.part.exit_code
        if code is None:
            return "it ended"
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"

    def _give_up(self, why: str) -> None:
        message = f"stopped for good: {why}; log: {self.part.log}"
        self._report(State.GAVE_UP, f"{message}\n{last_lines(self.part.log, _LINES_OF_LOG)}")
        self.failure = PartGaveUp(f"{self.part.name} is {message}", part=self.part.name, log=str(self.part.log))

    def _report(self, state: State, message: str = "") -> None:
        self.state, now = state, time.monotonic()
        part, seconds, self._changed = self.part, now - self._changed, now
        try:
            self._notify(Report(part.name, state, seconds, part.pid, part.address, part.log, self._starts, message))
        except OSError:  # whoever read what is printed went away
            self._stopping.set()


class Supervisor(Closeable):
    """Supervises all parts. Leaving its `with` block stops every part, in order."""

    def __init__(self, notify: Notify, stopping: threading.Event, policy: RetryPolicy = POLICY) -> None:
        self._notify = notify
        self._policy = policy
        self._stopping = stopping
        self._runners: dict[str, PartRunner] = {}

    def close(self) -> None:
        """Stop every part, in order."""
        self._stopping.set()
        for stage in Stage:
            ending = [runner.end for runner in self._runners.values() if runner.part.stage is stage]
            run_together(ending, name=f"stop-{stage.name.lower()}")

    def keep(self, part: Part) -> None:
        """Take a part on and start it, beside those that are started already."""
        self._runners[part.name] = PartRunner(part, self._notify, self._stopping, self._policy)
        self._runners[part.name].begin()

    def wait_ready(self) -> bool:
        """Return when every part was up once; False when all is to stop. A part that never comes up is an error."""
        for runner in self._runners.values():
            while not runner.ready.wait(_POLL_SECONDS):
                if self._stopping.is_set():
                    return False
                for each in self._runners.values():
                    if each.failure is not None:
                        raise each.failure
        return True

    def pid_of(self, name: str) -> int:
        """Give the process id that a part has now."""
        return self._runners[name].part.pid

    @property
    def down(self) -> list[str]:
        """The parts that do not do their work now: those that died, and those that are being started again."""
        return [name for name, runner in self._runners.items() if runner.state is not State.UP]

    @property
    def failures(self) -> list[PartGaveUp]:
        """The errors of the parts that were stopped for good."""
        return [runner.failure for runner in self._runners.values() if runner.failure is not None]
