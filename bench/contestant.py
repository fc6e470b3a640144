"""A contestant: a process of its own that is started once, warmed up, and then takes its turn in every round.

It speaks lines. It prints `@ready`, reads `go`, prints `@begin`, waits for `on` (the clocks are looked at in between),
prints `@warm 0 T` when it begins to read and `@done N T` at the end; T is the system's monotonic clock. A program whose
start is part of its run prints `@warm N T` once more when a third of the events have come, and is measured from there.
So a JVM is measured warm, and a Python process without its imports. Lines without `@` are its own business.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.accounting import Meter, forget_peak, peak_mb, tree_of

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_PDEATHSIG = 1
_LINES_OF_LOG = 15


class ContestantFailed(Exception):
    """It ended, failed or took too long; the others go on without it."""


class NotInTime(ContestantFailed):
    """It has not said what was waited for."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A peer that cannot run here, and why."""

    name: str
    reason: str
    peer: bool = True
    settings: Mapping[str, str] | None = None


class Contestant(ABC):
    """Something that can be measured in rounds."""

    def __init__(
        self,
        name: str,
        *,
        peer: bool = False,
        warm_ups: int = 0,
        settings: Mapping[str, object] | None = None,
        seconds: float = 120.0,
    ) -> None:
        self.name = name
        self.peer = peer
        self.warm_ups = warm_ups
        """Runs before the first round that are not counted: a JVM compiles what it runs often."""
        self.settings = {key: str(value) for key, value in (settings or {}).items()}
        self.seconds = seconds
        """How long one run may take."""

    @abstractmethod
    def launch(self, folder: Path) -> None:
        """Begin to get ready; logs go into the folder. All are launched together, since a JVM takes its time."""

    def wait_ready(self) -> None:
        """Wait until it can take turns."""
        return

    @abstractmethod
    def run(self, meter: Meter) -> dict[str, float]:
        """Take one turn."""

    @abstractmethod
    def close(self) -> None:
        """End, whatever the state."""


class LineProcess:
    """A process that speaks lines, and ends with us however we end."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=dict(environment) if environment is not None else None,
                preexec_fn=end_with_parent,
            )
        self.pid = self._process.pid
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("@"):
                self._lines.put(line[1:].strip())
            else:
                with self._log.open("a") as log:
                    log.write(line)
        self._lines.put(None)

    def tell(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ContestantFailed(f"it ended: {self._end_of_log()}") from None

    def wait_for(self, word: str, seconds: float) -> str:
        """Wait for the line that begins with a word; gives the rest of it."""
        deadline = time.monotonic() + seconds
        while True:
            said, rest = self.next_line(deadline - time.monotonic(), word)
            if said == word:
                return rest

    def has_said(self, word: str, seconds: float) -> bool:
        """Whether a line with this word comes within some seconds."""
        try:
            self.wait_for(word, seconds)
        except NotInTime:
            return False
        return True

    def next_line(self, seconds: float, wanted: str) -> tuple[str, str]:
        """Wait for the next line: its first word and the rest."""
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise NotInTime(f"no {wanted!r} in time") from None
        if line is None:
            raise ContestantFailed(f"it ended: {self._end_of_log()}")
        said, _, rest = line.partition(" ")
        if said == "failed":
            raise ContestantFailed(rest)
        return said, rest

    def close(self) -> None:
        """End it; gently first, because a Spark driver has a JVM to end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(1.5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                try:
                    pipe.close()
                except OSError:
                    pass

    def _end_of_log(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " | ".join(lines[-_LINES_OF_LOG:])[-1500:] or "it said nothing"


class ProcessContestant(Contestant):
    """A contestant that is one program with the protocol above."""

    def __init__(self, name: str, command: Sequence[str], *, seconds_to_start: float = 240.0, **options: Any) -> None:
        super().__init__(name, **options)
        self.command = command
        self._seconds_to_start = seconds_to_start
        self._process: LineProcess | None = None

    @property
    def process(self) -> LineProcess:
        """The running program."""
        if self._process is None:
            raise ContestantFailed("it was not started")
        return self._process

    def environment(self) -> dict[str, str] | None:
        """Its environment; None is ours."""
        return None

    def launch(self, folder: Path) -> None:
        """Start the program."""
        log = folder / f"{file_name(self.name)}.log"
        self._process = LineProcess(self.command, log, self.environment())

    def wait_ready(self) -> None:
        """Wait until the program says that it is ready."""
        self.process.wait_for("ready", self._seconds_to_start)

    def run(self, meter: Meter) -> dict[str, float]:
        """Let it read all events, and measure from its last `warm` on."""
        process = self.process
        forget_peak(tree_of(process.pid))
        process.tell("go")
        deadline = time.monotonic() + self.seconds
        first, before = meter.look(process.pid), 0
        while True:
            said, rest = process.next_line(deadline - time.monotonic(), "done")
            if said == "begin":
                first = meter.look(process.pid)
                process.tell("on")
            if said not in ("warm", "done"):
                continue
            seen, at, *busy = map(float, rest.split())
            if said == "warm":
                look = meter.look(process.pid) if seen else first
                first, before = replace(look, at=at), int(seen)
                continue
            look = replace(meter.look(process.pid), at=at)
            events = int(seen) - before
            found = meter.between(first, look, events)
            if busy:  # a streaming query says itself how long it was at work, without its start
                found["rate"] = events / busy[0]
            return {**found, "peak_mb": peak_mb(tree_of(process.pid))}

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.close()
            self._process = None


def python_job(name: str, target: str, arguments: Mapping[str, Any], **options: Any) -> ProcessContestant:
    """A contestant whose work is the Python function (or class) `module:name`; see `bench.child`."""
    return ProcessContestant(name, command_of(target, arguments), **options)


def command_of(target: str, arguments: Mapping[str, Any]) -> list[str]:
    """The command line of such a job."""
    return [sys.executable, "-m", "bench.child", target, json.dumps(dict(arguments))]


def end_with_parent() -> None:
    """Runs in a new child: the kernel kills it when the thread that made it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


def file_name(name: str) -> str:
    """A name that a file can have."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)
