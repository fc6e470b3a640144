"""The process of a Python contestant: loads what it is named and does it whenever it reads `go`.

    python -m bench.child bench.drain_jobs:raw_loop '{"uri": "...", "events": 100000, ...}'

A function is called with the arguments and `marks`; a class is made once with the arguments (a Spark session takes
long to start) and its `run(marks)` is called.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any


def say(word: str, rest: object = "") -> None:
    """Print one line of the protocol."""
    print(f"@{word} {rest}", flush=True)


def say_mark(word: str, seen: int, *more: object) -> None:
    """Print a mark with its time; the clock is the same for all processes of a machine."""
    say(word, " ".join(map(str, (seen, time.monotonic(), *more))))


class Marks:
    """Counts events, and says when the reading begins and when all of them have come.

    Everything between is measured: a client that reads ahead has most events when it hands over the first.
    """

    def __init__(self, events: int, wait: Callable[[], object] | None = None) -> None:
        self.events = events
        self.seen = 0
        self._wait = wait
        """Returns when the parent has looked at the clocks, so that nothing is done before."""

    def begin(self, seen: int = 0) -> None:
        """Say that the reading begins: connections are there, and nothing (or little) has come yet."""
        self.seen = seen
        if not seen and self._wait is not None:
            say("begin")
            self._wait()
        say_mark("warm", seen)

    def add(self, count: int) -> bool:
        """Count a batch; True when all have come."""
        return self.reach(self.seen + count)

    def reach(self, seen: int) -> bool:
        """The same, with the number of all so far."""
        before, self.seen = self.seen, seen
        if seen >= self.events > before:
            say_mark("done", seen)
        return seen >= self.events


def main() -> None:
    """Serve one parent until it closes our standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    target, given = sys.argv[1:]
    arguments: dict[str, Any] = json.loads(given)
    module, _, name = target.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    run: Callable[..., None] = found(**arguments).run if isinstance(found, type) else partial(found, **arguments)
    say("ready")
    for line in sys.stdin:
        if line.strip() == "go":
            try:
                run(marks=Marks(arguments["events"], sys.stdin.readline))
            except Exception as error:
                say("failed", " ".join(f"{type(error).__name__}: {error}".split())[:800])
                raise


if __name__ == "__main__":
    main()
