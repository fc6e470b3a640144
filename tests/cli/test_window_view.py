"""The bar of the oplog, cell by cell, and the sentences below it."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.cli.check import bar_of, forecast_line, line_of, view_of
from tailrace.cli.units import duration, size
from tailrace.monitor import (
    Forecast,
    Lag,
    Level,
    Liveness,
    Oplog,
    Report,
    Sample,
    State,
    Thresholds,
    Verdict,
    lag_of,
)
from tailrace.monitor.window import Trend

START = 1_700_000_000
GB = 10**9
THRESHOLDS = Thresholds()
TREND = Trend(60.0, 1_500_000.0, 1.0, 1.0, 0.5, 1_000.0)


def full_oplog() -> Oplog:
    return Oplog("rs0", Timestamp(START, 1), Timestamp(START + 36_000, 1), 50 * GB, 50 * GB)


def place_at(headroom: float, oplog: Oplog | None = None) -> Lag:
    oplog = oplog or full_oplog()
    return lag_of([Sample(0.0, oplog, Timestamp(START + round(36_000 * headroom), 1))])


@pytest.mark.parametrize(
    ("headroom", "bar"),
    [
        (1.0, " ━━━━━┃━━━◆"),
        (0.75, " ━━━━━┃━◆━━"),
        (0.5, " ━━━━━◆━━━━"),
        (0.05, " ◆━━━━┃━━━━"),
        (-0.1, "✗━━━━━┃━━━━"),
    ],
)
def test_the_consumer_stands_in_the_bar_where_its_headroom_is(headroom: float, bar: str) -> None:
    assert bar_of(full_oplog(), place_at(headroom), THRESHOLDS, width=10).plain == bar


def test_free_space_is_drawn_where_the_oplog_may_still_grow() -> None:
    filling = replace(full_oplog(), used_bytes=20 * GB)
    assert bar_of(filling, None, THRESHOLDS, width=10).plain == " ·····┃━━━━"
    assert bar_of(filling, place_at(0.0, filling), THRESHOLDS, width=10).plain == " ·····┃◆━━━"


@given(st.floats(-0.5, 1.5), st.floats(0.0, 2.0), st.integers(5, 200))
def test_the_bar_has_its_width_and_one_consumer_wherever_that_is(headroom: float, filled: float, width: int) -> None:
    oplog = replace(full_oplog(), used_bytes=int(filled * 50 * GB))
    bar = bar_of(oplog, place_at(headroom, oplog), THRESHOLDS, width).plain
    assert len(bar) == width + 1
    assert bar.count("◆") + bar.count("✗") == 1


def test_colours_are_the_levels_a_consumer_there_would_raise() -> None:
    spans = bar_of(full_oplog(), None, THRESHOLDS, width=20).spans
    assert [span.style for span in spans if span.start > 0] == (["red"] * 5 + ["yellow"] * 5 + ["dim"] + ["green"] * 9)


@pytest.mark.parametrize(
    ("forecast", "sentence"),
    [
        (Forecast(7_980.0, 3_600.0, None), "history is lost in 2 h 13 min, at "),
        (Forecast(None, 3_600.0, 90.0), "caught up in 1 min 30 s; 1 h if the consumer stopped now"),
        (Forecast(None, 3_600.0, None), "not losing ground; 1 h if the consumer stopped now"),
        (Forecast(None, None, None), "not losing ground; nothing is being written"),
    ],
)
def test_the_forecast_is_a_sentence(forecast: Forecast, sentence: str) -> None:
    place = replace(place_at(0.5), trend=TREND, forecast=forecast)
    assert forecast_line(float(START), place).startswith(sentence)


def test_one_sample_says_that_it_saw_no_trend() -> None:
    # Half of the window, less the hundredth that the server drops at once.
    assert forecast_line(float(START), place_at(0.5)).startswith("4 h 54 min if the consumer stopped now (one sample")


@given(st.floats(0.0, 2.0))
def test_the_picture_fits_into_80_columns(filled: float) -> None:
    oplog = replace(full_oplog(), used_bytes=int(filled * 50 * GB))
    console = Console(file=io.StringIO(), width=80)
    console.print(view_of(Report(float(START), oplog), THRESHOLDS))
    assert isinstance(console.file, io.StringIO)
    _, _, bar, times, legend, *_ = console.file.getvalue().splitlines()
    assert len(bar.rstrip()) == len(times.rstrip()) == 63
    assert times.split()[-1] == time.strftime("%H:%M", time.localtime(START + 36_000))
    assert "free" in legend


def test_a_report_is_a_picture_and_also_one_line() -> None:
    place = replace(place_at(0.4), trend=TREND, forecast=Forecast(7_980.0, 3_600.0, None))
    verdict = Verdict(Level.WARNING, ("60% of the oplog's capacity lies after the position",))
    report = Report(float(START), full_oplog(), "orders", place, Liveness(State.BEHIND, "it is slow"), verdict)
    console = Console(file=io.StringIO(), width=140)
    console.print(view_of(report, THRESHOLDS))
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    for part in (
        "orders on rs0   WARNING   behind",
        "10 h in 50.0 GB, 100% of 50.0 GB: full",
        "6 h old",
        "headroom 40%",
        "1.50 MB/s written; the consumer reads 0.50 s of log a second (over 1 min)",
        "it is slow",
        "60% of the oplog's capacity lies after the position",
    ):
        assert part in drawn
    assert line_of(report) == (
        "WARNING orders on rs0: 60% of the oplog's capacity lies after the position"
        " | window 10 h in 50.0 GB, position 6 h old, headroom 40%"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3_600, "1 h"), (7_985, "2 h 13 min"), (90_000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (48_000_000, "48.0 MB"), (999_999, "1.00 MB"), (5e12, "5.00 TB"),
     (2e15, "2,000 TB")],
)  # fmt: skip
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
