"""A real `tailrace up --demo`, watched through its JSON lines."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tailrace.features import read
from tailrace.owned import GuardedProcess, run_guarded
from tailrace.settings import Settings

SECONDS = 600.0
"""Spark starts twice: on a machine with other work that takes minutes."""


class Pipeline:
    """The running command, what it said, and its processes."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "tailrace.cli.app", "up", "--demo", "--rate", "20", "--json", *flags]
        with (folder / "stderr.log").open("wb") as stderr:
            self.process = GuardedProcess(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=folder)
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, f"it ended; {self.story()}"
            assert time.monotonic() < deadline, f"{what} did not happen in time; {self.story()}"
            time.sleep(0.2)

    def story(self) -> str:
        """The last things that it said, for a test that fails."""
        errors = (self.folder / "stderr.log").read_text()[-2000:]
        return "\n".join([errors, *(json.dumps(line) for line in self.said[-15:])])

    def wait_ready(self) -> dict[str, Any]:
        self.wait_until(lambda: any(line["event"] == "ready" for line in self.said), "the start")
        return next(line for line in self.said if line["event"] == "ready")

    def commands(self) -> list[str]:
        """The commands that it suggests."""
        return [command for suggestion in self.wait_ready()["suggestions"] for command in suggestion["commands"]]

    def suggested(self, words: str) -> str:
        return next(command for command in self.commands() if words in command)

    def run(self, command: str) -> str:
        """Run a suggested command as a person would, and give what it prints."""
        ended = run_guarded(shlex.split(command), cwd=self.folder, capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def pay(self, user: int, amount: float) -> str:
        """Make a payment by hand, as it suggests, and give what that prints."""
        return self.run(re.sub(r"\d+ 99\.50$", f"{user} {amount}", self.suggested("--pay")))

    def has_features_of(self, user: int) -> bool:
        """Whether Redis knows of one payment of a user."""
        settings = Settings.load(self.folder / ".tailrace" / "up" / "tailrace.toml")
        try:
            with redis.Redis.from_url(settings.features.redis_url.get_secret_value()) as client:
                return bool(read(client, user, "fraud")["transactions_1h"] == 1)
        except redis.RedisError:
            return False

    def wait_for_features_of(self, user: int) -> None:
        self.wait_until(lambda: self.has_features_of(user), f"the payment of {user} in Redis")

    def reports(self, part: str, state: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line.get("part") == part and line["state"] == state]

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(line["part"] for line in self.said if line["event"] == "part"))

    def pid_of(self, part: str) -> int:
        return int(self.reports(part, "up")[-1]["pid"])

    def processes(self) -> set[int]:
        """All processes that it started, and those that these started."""
        return descendants(self.process.program_pid)

    def interrupt(self) -> int:
        """Press Ctrl-C, and give the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running_pipeline(folder: Path) -> Iterator[Pipeline]:
    """A pipeline of which every part is up, ended however the test ends."""
    pipeline = Pipeline(folder)
    try:
        pipeline.wait_ready()
        yield pipeline
    finally:
        pipeline.close()


def descendants(pid: int) -> set[int]:
    """The processes below one, at any depth."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    level = [pid]
    while level:
        level = [child for each in level for child in children.get(each, [])]
        found |= set(level)
    return found


def alive(pids: set[int]) -> dict[int, str]:
    """Those of the processes that still run, with their command lines; one that only waits to be reaped does not."""
    running = {}
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state != "Z":
            running[pid] = command
    return running


def wait_gone(pids: set[int]) -> None:
    """The kernel may take a moment to end what was killed with its parent."""
    deadline = time.monotonic() + 200
    while left := alive(pids):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
