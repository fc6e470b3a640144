"""`tailrace check`: how long the oplog lasts, where streams stand in it, and when they would lose their place."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tailrace.cli.flags import STORE, Flag, Streams, with_settings
from tailrace.cli.units import duration, size
from tailrace.errors import Outcome, TailraceError
from tailrace.monitor.alerts import Level, Thresholds
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
        typer.Option(help="Replica set, config server or mongos; repeat for several; default: mongodb.uri."),
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
        int | None, typer.Option(help="Serve metrics there, for --watch; none unless given.", min=0, max=65535)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; one line per poll with --watch.")] = False,
) -> None:
    """Show the oplog window, each stream's position in it, and when history would be lost.

    Exit code 0 when all is well, 1 for a warning (half of the oplog behind a position, a stall), 2 when it is critical
    (three quarters, or history is lost), as monitoring plugins do.
    """
    from tailrace.cli.log import configure_log
    from tailrace.monitor import Observer, Thresholds, serve_endpoint, shard_readers
    from tailrace.telemetry.tracing import telemetry_of

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
        """Show one sample."""

        if self._repeats and not self._live:
            for report in reports:
                typer.echo(line_of(report))
            return
        drawn = Group(*(view_of(report, self._thresholds) for report in reports))
        if self._live:
            self._live.update(drawn, refresh=True)
        else:
            self._console.print(drawn)


if TYPE_CHECKING:
    from tailrace.monitor.observer import Report
    from tailrace.monitor.window import Lag, Oplog

BAR_WIDTH = 60
_COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.CRITICAL: "red"}
_ENTRIES, _FREE, _HALF, _CONSUMER, _LOST = "━", "·", "┃", "◆", "✗"


def view_of(report: Report, thresholds: Thresholds) -> RenderableType:
    """Give everything about one stream on one shard, or about a shard alone."""
    oplog, lag = report.oplog, report.lag
    level = report.verdict.level
    title = Text(f"{report.stream} on {oplog.shard}" if report.stream else f"oplog of {oplog.shard}", "bold")
    if report.liveness:
        title.append(f"   {level.name}", f"bold {_COLOURS[level]}").append(f"   {report.liveness.state}")
    return Group(title, "", *_bar_with_scale(oplog, lag, thresholds), "", _numbers(report), "")


def line_of(report: Report) -> str:
    """Give the report as one line, as monitoring plugins do."""
    oplog, lag = report.oplog, report.lag
    window = f"window {duration(oplog.window_seconds)} in {size(oplog.used_bytes)}"
    if lag is None or report.liveness is None:
        return f"{report.verdict.level.name} {oplog.shard}: {window}"
    why = "; ".join(report.verdict.reasons) or f"{report.liveness.state}: {report.liveness.proof}"
    numbers = f"{window}, position {duration(lag.age_seconds)} old, headroom {lag.headroom_ratio:.0%}"
    return f"{report.verdict.level.name} {report.stream} on {oplog.shard}: {why} | {numbers}"


def bar_of(oplog: Oplog, lag: Lag | None, thresholds: Thresholds, width: int = BAR_WIDTH) -> Text:
    """Draw the oplog's capacity, the newest entry at the right: free space, entries, the half line, the consumer.

    A lag in the bar is the headroom that a consumer there would have. The colour is the level it would raise.
    """
    free = 1 - oplog.used_bytes / oplog.capacity_bytes
    consumer = None if lag is None or lag.lost else min(width - 1, int(lag.headroom_ratio * width))
    half = min(width - 1, int((1 - thresholds.warn_ratio) * width))
    bar = Text().append(_LOST if lag is not None and lag.lost else " ", "bold red")
    for cell in range(width):
        headroom = (cell + 0.5) / width
        if cell == consumer:
            bar.append(_CONSUMER, "bold")
        elif cell == half:
            bar.append(_HALF, "dim")
        else:
            bar.append(_FREE if headroom < free else _ENTRIES, _COLOURS[_level_at(headroom, thresholds)])
    return bar


def _level_at(headroom: float, thresholds: Thresholds) -> Level:
    if 1 - headroom >= thresholds.critical_ratio:
        return Level.CRITICAL
    return Level.WARNING if 1 - headroom >= thresholds.warn_ratio else Level.OK


def _bar_with_scale(oplog: Oplog, lag: Lag | None, thresholds: Thresholds) -> list[Text]:
    """Give the bar, the times of its ends below it, and what its signs mean; all of it fits into 80 columns."""
    left, right = _clock(oplog.first.time), _clock(oplog.last.time)
    free = int((1 - oplog.used_bytes / oplog.capacity_bytes) * BAR_WIDTH)
    first_at = min(free, BAR_WIDTH - len(left) - len(right) - 1)
    times = f"{' ' * first_at}{left}".ljust(BAR_WIDTH - len(right)) + right
    legend = [f"{_HALF} {thresholds.warn_ratio:.0%} of the oplog to the right", f"{_FREE} free"]
    if lag is not None:
        legend.insert(0, f"{_LOST} consumer, out of the oplog" if lag.lost else f"{_CONSUMER} consumer")
    bar = Text("  ").append_text(bar_of(oplog, lag, thresholds))
    return [bar, Text(f"   {times}"), Text(f"   {'   '.join(legend)}", "dim")]


def _numbers(report: Report) -> Table:
    oplog, lag = report.oplog, report.lag
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim")
    table.add_column(overflow="fold")
    filled = f"{oplog.used_bytes / max(oplog.limit_bytes, 1):.0%} of {size(oplog.limit_bytes)}"
    fullness = "full" if oplog.full else "still filling up"
    window = f"{duration(oplog.window_seconds)} in {size(oplog.used_bytes)}, {filled}: {fullness}"
    table.add_row("  window", window)
    if oplog.others:
        others = ", ".join(f"{other.member} {duration(other.window_seconds)}" for other in oplog.others)
        table.add_row("members", f"{oplog.member} {duration(oplog.window_seconds)} is read; {others}")
    if lag is None or report.liveness is None:
        return table
    table.add_row("position", _position(lag))
    if lag.trend:
        table.add_row("pace", _pace(lag))
    table.add_row("forecast", forecast_line(report.at, lag))
    table.add_row(report.liveness.state.value, report.liveness.proof)
    for reason in report.verdict.reasons:
        table.add_row(report.verdict.level.name.lower(), Text(reason, _COLOURS[report.verdict.level]))
    return table


def _position(lag: Lag) -> str:
    headroom = f"headroom {lag.headroom_ratio:.0%}"
    return f"{duration(lag.age_seconds)} old ({_clock(lag.position.time)}), {headroom}"


def _pace(lag: Lag) -> str:
    assert lag.trend is not None
    written = f"{size(lag.trend.written_per_second)}/s written"
    reads = f"the consumer reads {max(0.0, lag.trend.position_speed):.2f} s of log a second"
    return f"{written}; {reads} (over {duration(lag.trend.over_seconds)})"


def forecast_line(at: float, lag: Lag) -> str:
    """Say when history is lost, if ever, and how long it would last without the consumer."""
    forecast = lag.forecast
    if lag.lost:
        return "history is lost; `tailrace recover --dry-run` shows what a recovery would do"
    stopped = forecast.until_lost_if_stopped
    spare = "nothing is being written" if stopped is None else f"{duration(stopped)} if the consumer stopped now"
    if lag.trend is None:
        return f"{spare} (one sample shows no trend; --over 30 samples for 30 s first)"
    if forecast.until_lost is not None and not math.isinf(forecast.until_lost):
        lost_at = _clock(at + forecast.until_lost)
        return f"history is lost in {duration(forecast.until_lost)}, at {lost_at}, at this pace; {spare}"
    if forecast.until_caught_up is not None:
        return f"caught up in {duration(forecast.until_caught_up)}; {spare}"
    return f"not losing ground; {spare}"


def _clock(seconds: float) -> str:
    """Give a time of day, with the date when it is not today's."""
    moment = time.localtime(seconds)
    form = "%H:%M:%S" if moment[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(form, moment)
