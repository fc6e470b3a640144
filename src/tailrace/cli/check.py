"""`tailrace check`: how long the oplog lasts, where streams stand in it, and when they would lose their place."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live

from tailrace.cli.flags import STORE, Flag, Streams, with_settings
from tailrace.errors import Outcome, TailraceError
from tailrace.settings import Settings, masked

if TYPE_CHECKING:
    from tailrace.monitor import Consumer, Observer, Report, Thresholds
    from tailrace.settings import CaptureSettings

_SECONDS_BETWEEN_SAMPLES = 1.0


@with_settings(
    STORE,
    Flag("every", "monitor.every_seconds", "Seconds between samples", float),
    Flag("warn", "monitor.warn_ratio", "Share of the oplog that is a warning", float),
    Flag("critical", "monitor.critical_ratio", "Share of the oplog that is critical", float),
)
def check(
    settings: Settings,
    names: Streams = None,
    uri: Annotated[
        list[str] | None,
        typer.Option(help="Replica set, config server or mongos; repeat for several. Default mongodb.uri."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="A position outside any store: ISO 8601, epoch seconds or `seconds,increment`."),
    ] = None,
    over: Annotated[float, typer.Option(help="Observe for this many seconds first, to see the trend.", min=0)] = 0,
    watch: Annotated[bool, typer.Option("--watch", help="Keep polling until stopped; alerts go to the log.")] = False,
    polls: Annotated[
        int | None, typer.Option("--polls", "--looks", help="End --watch after this many polls.", min=1)
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve metrics there, for --watch; none unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; one line per poll with --watch.")] = False,
) -> None:
    """Show the oplog window, each stream's position in it, and when history would be lost.

    Exit code 0 when all is well, 1 for a warning (half of the oplog behind a position, a stall), 2 when it is critical
    (three quarters, or history is lost), as monitoring plugins do.
    """
    from tailrace.cli.log import configure_log
    from tailrace.monitor import Observer, Thresholds, serve_endpoint, shard_readers
    from tailrace.telemetry.configured import telemetry_of

    configure_log(settings.log)
    monitor = settings.monitor
    uris = uri or [settings.mongodb.uri.get_secret_value()]
    with ExitStack() as opened:
        consumers = opened.enter_context(_consumers(names or [], settings.capture, at))
        mongodb = settings.mongodb
        readers = opened.enter_context(
            shard_readers(uris, mongodb.timeout_seconds, mongodb.family, mongodb.retention_hours)
        )
        if metrics_port is not None:
            opened.enter_context(serve_endpoint(metrics_port, monitor.metrics_address))
        opened.enter_context(telemetry_of(settings.telemetry))
        terminal = opened.enter_context(_Terminal(Thresholds.of(monitor), repeats=watch and not as_json))
        show = _show_json if as_json else terminal.show
        observer = Observer.of(monitor, readers, consumers, log=watch)
        if watch:
            reports = _watch(observer, show, monitor.every_seconds, polls)
        else:
            reports = _sample(observer, over)
            show(reports)
    raise typer.Exit(max((report.verdict.level for report in reports), default=0))


@contextmanager
def _consumers(
    names: list[str], settings: CaptureSettings, at: str | None
) -> Iterator[Callable[[], Sequence[Consumer]]]:
    """Where the positions come from: the command line, or the store. An empty store leaves the window alone."""
    from tailrace.capture.positions import open_store
    from tailrace.capture.recovery.gaps import consumer_of
    from tailrace.monitor import Consumer

    if at is not None:
        from tailrace.cli.token import parse_time

        fixed = [Consumer(names[0] if names else "position", parse_time(at))]
        yield lambda: fixed
        return
    with open_store(settings.position_store.get_secret_value()) as store:
        yield lambda: [consumer_of(store, name) for name in names or store.names()]


def _sample(observer: Observer, seconds: float) -> list[Report]:
    """Poll once, or as often as it takes to see a trend."""
    deadline = time.monotonic() + seconds
    reports = observer.poll()
    while time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_SAMPLES)
        reports = observer.poll()
    return reports


def _watch(observer: Observer, show: Callable[[list[Report]], None], every: float, polls: int | None) -> list[Report]:
    """Poll and show, until Ctrl-C or the last poll; a server that is away is tried again."""
    for number in itertools.count(1):
        try:
            reports = observer.poll()
            show(reports)
        except TailraceError as error:
            if error.outcome is not Outcome.RETRY or number == polls:
                raise
            typer.echo(f"error[{error.code}]: {masked(error.message)}", err=True)
        if number == polls:
            break
        time.sleep(every)
    return reports


def _show_json(reports: list[Report]) -> None:
    typer.echo(json.dumps([report.to_json() for report in reports]))


class _Terminal:
    """Draws the reports in place on a terminal, and one line each into a pipe that is written again and again."""

    def __init__(self, thresholds: Thresholds, *, repeats: bool) -> None:
        self._thresholds = thresholds
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if repeats and self._console.is_terminal else None
        self._repeats = repeats

    def __enter__(self) -> _Terminal:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, reports: list[Report]) -> None:
        """Show one look."""
        from tailrace.cli.window_view import line_of, view_of

        if self._repeats and not self._live:
            for report in reports:
                typer.echo(line_of(report))
            return
        drawn = Group(*(view_of(report, self._thresholds) for report in reports))
        if self._live:
            self._live.update(drawn, refresh=True)
        else:
            self._console.print(drawn)
