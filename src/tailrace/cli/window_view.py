"""What `tailrace check` shows of a report: a bar of the oplog with the consumer in it, and the numbers below."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tailrace.cli.units import duration, size
from tailrace.monitor.alerts import Level, Thresholds

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
