"""`tailrace up`: the whole pipeline on one machine, kept running until Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tailrace.cli.session import session
from tailrace.extras import require_modules
from tailrace.owned import handling_signals

HELP = """Run everything on one machine: servers, producer, Spark jobs and dashboard.

Servers named in the settings ([bold]mongodb.uri[/bold], [bold]capture.sink[/bold], [bold]features.redis_url[/bold])
are used as they are. The others are downloaded and started here, keep their data in the run folder, and are removed
after the run. Whatever dies is restarted, until Ctrl-C. [bold]--demo[/bold] adds the payments and features of the
fraud-signals example.
"""


def up(
    demo: Annotated[bool, typer.Option("--demo", help="Write the payments of the fraud-signals example.")] = False,
    rate: Annotated[float, typer.Option(help="Writes per second of the demo.", min=0.1)] = 50,
    config: Annotated[Path | None, typer.Option(help="Settings file; default tailrace.toml.")] = None,
    features: Annotated[
        list[str] | None, typer.Option(help="Feature definition, a TOML file or module:name (up.features).")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Logs and state; emptied at each start (up.folder).")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop this many seconds after everything is up.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what happens as JSON lines.")] = False,
) -> None:
    """Start everything on one machine and keep it running."""
    require_modules("`tailrace up`", "confluent_kafka", "pyspark", "redis", "uvicorn")
    from tailrace.cli.spark_session import fetched_connectors
    from tailrace.up import JsonView, PlainView, Plan, TerminalView, run
    from tailrace.up.run import fetch

    session.config = config or session.config
    flags = {"up__features": tuple(features) if features else None, "up__folder": folder}
    plan = Plan(session.settings(**flags), demo, rate)
    java_home = fetch(plan.servers)
    fetched_connectors()
    console = Console()
    view = JsonView() if as_json else TerminalView(console) if console.is_terminal else PlainView()
    with _signals() as (stopping, interrupted):
        was_up = run(
            plan,
            lambda over: session.settings(**flags, **{key.replace(".", "__"): value for key, value in over.items()}),
            view,
            java_home=java_home,
            stopping=stopping,
            seconds=seconds,
        )
    if interrupted.is_set() and not was_up:  # afterwards Ctrl-C is how such a run ends
        raise KeyboardInterrupt


@contextmanager
def _signals() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Let Ctrl-C, SIGTERM and a closed terminal stop the run in order; a second Ctrl-C ends it at once."""
    stopping, interrupted = threading.Event(), threading.Event()

    def stop(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            _write_nowhere()
        if number == signal.SIGINT:
            if interrupted.is_set():
                raise KeyboardInterrupt
            interrupted.set()
        stopping.set()

    # Whoever started this with nohup has said that it goes on without a terminal.
    is_attached = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    stopped_by = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if is_attached else [])]
    with handling_signals(stop, stopped_by):
        yield stopping, interrupted


def _write_nowhere() -> None:
    """Let what is still printed go nowhere: the terminal is closed, and writing to it would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
