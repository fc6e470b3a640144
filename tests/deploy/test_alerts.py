"""Each alert fires on what the real registry exposes when the thing it warns of has happened, and not before."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bson import Timestamp

from deploy.exposed import samples
from promql import firing
from tailrace.monitor import State, StreamMetrics
from tailrace.monitor.metrics import REGISTRY, show_lag, show_oplog, show_state

RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(
        (Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules.yml").read_text()
    )["groups"]
    for rule in group["rules"]
}
MINUTES = 40
SHARD = "shard-of-alerts"
STREAM = "stream-of-"
Step = Callable[[StreamMetrics, int], None]


def well(stream: StreamMetrics, minute: int) -> None:
    """What a process reports each minute when nothing is wrong."""
    show_oplog(SHARD, window=400_000, used_bytes=50, limit_bytes=100)
    show_lag(stream.stream, SHARD, age=1, headroom=0.98, until_lost=None)
    stream.state(State.LIVE)
    stream.batch({("insert", "shop.orders"): 10}, 1_000, 0.01)
    stream.position(Timestamp(1_777_636_800 + 60 * minute, 1))


def place(age: float, headroom: float, until_lost: float | None) -> Step:
    return lambda stream, _: show_lag(stream.stream, SHARD, age=age, headroom=headroom, until_lost=until_lost)


def state(name: State) -> Step:
    return lambda stream, _: show_state(stream.stream, name)


WRONG: dict[str, Step] = {
    "TailraceHistoryLost": place(9_000, 0, 0),
    "TailraceHeadroomCritical": place(10, 0.2, math.inf),
    "TailraceHeadroomLow": place(10, 0.4, math.inf),
    "TailraceHistoryLostSoon": place(600, 0.9, 1_800),
    "TailraceHistoryLostToday": place(600, 0.9, 9_000),
    "TailraceOplogWindowShort": lambda _, __: show_oplog(SHARD, window=7_200, used_bytes=99, limit_bytes=100),
    "TailraceStreamStalled": state(State.STALLED),
    "TailraceStreamBehind": state(State.BEHIND),
    "TailraceStreamRecovering": state(State.RECOVERING),
    "TailraceGapRecorded": lambda stream, minute: stream.gap() if minute == MINUTES - 5 else None,
    "TailraceErrors": lambda stream, _: [stream.error("server-unreachable") for _ in range(5)] and None,
    "TailraceDeadLetters": lambda stream, _: stream.dead_letter("record-refused"),
}


@pytest.fixture(autouse=True)
def _clean_registry() -> Iterator[None]:
    """Other tests of the process must not meet what is shown here."""
    yield
    for collector in set(REGISTRY._names_to_collectors.values()):
        for labels in list(getattr(collector, "_metrics", {})):
            if SHARD in labels or any(label.startswith(STREAM) for label in labels):
                collector.remove(*labels)


def scraped(name: str, step: Step | None) -> dict[tuple[str, frozenset[tuple[str, str]]], list[float]]:
    """Scrape the registry once a minute while a stream works, and something goes wrong with it half-way."""
    stream = StreamMetrics(name)
    series: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = defaultdict(list)
    for minute in range(MINUTES + 1):
        well(stream, minute)
        if step is not None:
            step(stream, minute)
        for key, value in samples().items():
            if ("stream", name) in key[1] or ("shard", SHARD) in key[1]:
                # A series that appears later has no value before: zero is what a counter had then.
                series[key] += [0.0] * (minute - len(series[key])) + [value]
    return series


@pytest.mark.parametrize("alert", WRONG)
def test_an_alert_fires_when_it_should(alert: str) -> None:
    series = scraped(STREAM + alert, WRONG[alert])
    assert firing(RULES[alert], series, MINUTES)


@pytest.mark.parametrize("alert", WRONG)
def test_no_alert_fires_when_all_is_well(alert: str) -> None:
    assert not firing(RULES[alert], scraped(f"{STREAM}calm", None), MINUTES)


def test_a_position_that_is_no_longer_committed_is_noticed() -> None:
    series = scraped(f"{STREAM}quiet", None)
    key = ("tailrace_batches_total", frozenset({("stream", f"{STREAM}quiet")}))
    assert not firing(RULES["TailracePositionNotCommitted"], series, MINUTES)
    series[key] = [*series[key][:11], *[series[key][10]] * (MINUTES - 10)]
    assert firing(RULES["TailracePositionNotCommitted"], series, MINUTES)


def test_a_process_that_does_not_answer_is_noticed() -> None:
    """`up` is Prometheus' own: 0 for a process that it could not scrape."""
    labels = frozenset({("job", "tailrace"), ("instance", "a:9464")})
    assert not firing(RULES["TailraceDown"], {("up", labels): [1.0] * (MINUTES + 1)}, MINUTES)
    assert firing(RULES["TailraceDown"], {("up", labels): [0.0] * (MINUTES + 1)}, MINUTES)


def test_every_alert_is_tried() -> None:
    assert set(RULES) == {*WRONG, "TailracePositionNotCommitted", "TailraceDown"}
