"""A producer in a process of its own that tests may kill, at any moment or at a named point of the commit order."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Mapping
from typing import Any

from pymongo import MongoClient

from tailrace.owned import end_with_parent

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["crash_process", "tailrace.capture.producer.assembly", "tailrace.capture.sinks.kafka_exactly_once"]
)


def start_capture(flags: Mapping[str, Any], die_at: tuple[str, int] | None = None, **options: Any) -> Any:
    """Start a producer with these settings; with `die_at` it kills itself when it is the n-th time at a point.

    With `stop_at` it stops itself there instead, as a paused container does, until somebody sends SIGCONT. `machine` is
    what it takes for the name of its machine, `folder` where it works, and `file` the settings file.
    """
    process = _CONTEXT.Process(target=_run, args=(dict(flags), die_at, options), daemon=True)
    process.start()
    return process


def fill_disk(process: Any) -> None:
    """Let no file of the process grow over a hundred bytes from now on, as on a full disk."""
    os.kill(process.pid, signal.SIGUSR1)


def empty_disk(process: Any) -> None:
    """Give the process its disk back."""
    os.kill(process.pid, signal.SIGUSR2)


def _set_file_limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _run(flags: dict[str, Any], die_at: tuple[str, int] | None, options: dict[str, Any]) -> None:
    from tailrace.capture.positions import position
    from tailrace.capture.producer.assembly import Capture
    from tailrace.settings import Settings

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: _set_file_limit(100))
    signal.signal(signal.SIGUSR2, lambda *_: _set_file_limit(resource.RLIM_INFINITY))
    nowhere = os.open(os.devnull, os.O_WRONLY)  # the test runner's file would be full too
    os.dup2(nowhere, 1)
    if (machine := options.pop("machine", None)) is not None:
        position._machine = lambda: machine  # type: ignore[assignment]
    if (folder := options.pop("folder", None)) is not None:
        os.chdir(folder)
    settings = Settings.load(options.pop("file", None), flags=flags)
    times: dict[str, int] = {}
    stop_at = options.pop("stop_at", None)

    def hook(point: str) -> None:
        times[point] = times.get(point, 0) + 1
        if die_at == (point, times[point]):
            os.kill(os.getpid(), signal.SIGKILL)
        if stop_at == (point, times[point]):
            os.kill(os.getpid(), signal.SIGSTOP)

    client: MongoClient[dict[str, Any]] = MongoClient(settings.mongodb.uri.get_secret_value())
    with client, Capture.open(settings, client) as capture:
        producer = capture.producer(hook=hook, **options)
        signal.signal(signal.SIGTERM, lambda *_: producer.stop())
        producer.run()
