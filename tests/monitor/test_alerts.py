"""Levels, when an alert is sent, and that it arrives: webhooks go to a real HTTP server on loopback."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace

import pytest
import structlog
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import AlertUndelivered
from tailrace.monitor.alerts import (
    Alarm,
    Alert,
    Level,
    LogChannel,
    Thresholds,
    Verdict,
    WebhookChannel,
    verdict_of,
)
from tailrace.monitor.liveness import Liveness, State
from tailrace.monitor.window import Lag, Oplog, Sample, lag_of
from webhook_server import Hook, serving

START = 1_700_000_000
LIVE = Liveness(State.LIVE, "it moves")
BEHIND = Liveness(State.BEHIND, "it is slow")
ALERT = Alert("orders", "rs0", Level.CRITICAL, Level.OK, ("80% of the oplog lies after the position",), {"x": 1})


def place_at(age: int, until_lost: float | None = None) -> Lag:
    """A lag in a full oplog of 1,000 s."""
    oplog = Oplog("rs0", Timestamp(START, 1), Timestamp(START + 1_000, 1), 10**8, 10**8)
    lag = lag_of([Sample(0.0, oplog, Timestamp(START + 1_000 - age, 1))])
    return replace(lag, forecast=replace(lag.forecast, until_lost=until_lost))


@pytest.mark.parametrize(
    ("age", "level"),
    [
        (0, Level.OK),
        (499, Level.OK),
        (500, Level.WARNING),
        (749, Level.WARNING),
        (750, Level.CRITICAL),
        (1_001, Level.CRITICAL),
    ],
)
def test_half_the_window_warns_and_three_quarters_are_critical(age: int, level: Level) -> None:
    assert verdict_of(place_at(age), LIVE).level is level


def test_a_member_that_could_not_go_on_is_told_before_the_failover() -> None:
    def beside(first: int) -> Lag:
        lag = place_at(100)
        other = replace(lag.oplog, first=Timestamp(START + first, 1), member="b:27017")
        return replace(lag, oplog=replace(lag.oplog, member="a:27017", others=(other,)))

    assert verdict_of(beside(first=800), LIVE).level is Level.OK
    verdict = verdict_of(beside(first=950), LIVE)
    assert verdict.level is Level.WARNING
    assert verdict.reasons == ("a failover to b:27017 would lose history: its oplog begins 50 s after the position",)


@pytest.mark.parametrize(
    ("until_lost", "liveness", "level"),
    [
        (None, BEHIND, Level.OK),
        (14_401, BEHIND, Level.OK),
        (14_399, BEHIND, Level.WARNING),
        (3_599, BEHIND, Level.CRITICAL),
        (60, LIVE, Level.OK),
        (None, Liveness(State.STALLED, "it stands"), Level.WARNING),
        (60, Liveness(State.STALLED, "it stands"), Level.CRITICAL),
        (None, Liveness(State.RECOVERING, "a gap"), Level.WARNING),
    ],
)
def test_a_forecast_alarms_about_streams_that_are_behind(
    until_lost: float | None, liveness: Liveness, level: Level
) -> None:
    verdict = verdict_of(place_at(90, until_lost), liveness)
    assert verdict.level is level
    assert bool(verdict.reasons) == (level is not Level.OK)


def test_a_forecast_counts_in_a_short_oplog_before_the_stream_is_called_behind() -> None:
    assert verdict_of(place_at(90, until_lost=60), LIVE).level is Level.OK
    assert verdict_of(place_at(110, until_lost=60), LIVE).level is Level.CRITICAL


def test_the_worst_reason_comes_first() -> None:
    verdict = verdict_of(place_at(1_500), Liveness(State.STALLED, "it stands"))
    assert verdict.reasons == ("history is lost: the oplog begins 500 s after the position", "stalled: it stands")


@given(st.integers(0, 2_000), st.floats(0.01, 1), st.floats(0.01, 1))
def test_levels_only_rise_with_age(age: int, warn: float, critical: float) -> None:
    thresholds = Thresholds(min(warn, critical), max(warn, critical))
    levels = [verdict_of(place_at(each), LIVE, thresholds).level for each in (age, age + 50)]
    assert levels == sorted(levels)


@dataclass
class Recorder:
    """A channel that fails as often as it is told to."""

    failures: int = 0
    got: list[Alert] = field(default_factory=list)

    def send(self, alert: Alert) -> None:
        if self.failures:
            self.failures -= 1
            raise AlertUndelivered("not now")
        self.got.append(alert)


def levels_sent(alarm: Alarm, channel: Recorder, *heard: tuple[float, Level]) -> list[tuple[str, str]]:
    for now, level in heard:
        alarm.hear("orders", "rs0", Verdict(level), {}, now)
    return [(alert.previous.name, alert.level.name) for alert in channel.got]


def test_an_alert_is_sent_when_the_level_changes_and_once_more_when_it_lasts() -> None:
    channel = Recorder()
    alarm = Alarm([channel], repeat_seconds=100)
    ok, warning, critical = Level.OK, Level.WARNING, Level.CRITICAL
    heard = [(0, ok), (5_000, ok), (5_001, warning), (5_010, warning), (5_020, critical), (5_119, critical)]
    heard += [(5_120, critical), (5_130, critical), (5_140, ok), (9_000, ok)]
    assert levels_sent(alarm, channel, *heard) == [
        ("OK", "WARNING"),
        ("WARNING", "CRITICAL"),
        ("CRITICAL", "CRITICAL"),
        ("CRITICAL", "OK"),
    ]


def test_a_channel_that_failed_gets_the_alert_again_and_the_others_do_not() -> None:
    steady, shaky = Recorder(), Recorder(failures=2)
    alarm = Alarm([steady, shaky])
    for now in range(4):
        alarm.hear("orders", "rs0", Verdict(Level.WARNING, ("why",)), {}, float(now))
    assert len(steady.got) == 1
    assert len(shaky.got) == 1
    assert shaky.got[0].text == "tailrace WARNING: orders on rs0: why"


def test_streams_and_shards_alarm_on_their_own() -> None:
    channel = Recorder()
    alarm = Alarm([channel])
    for stream, shard in (("a", "s0"), ("a", "s1"), ("b", "s0"), ("a", "s0")):
        alarm.hear(stream, shard, Verdict(Level.WARNING), {}, 0.0)
    assert [(alert.stream, alert.shard) for alert in channel.got] == [("a", "s0"), ("a", "s1"), ("b", "s0")]


def test_the_log_gets_one_line_at_the_level_that_fits() -> None:
    with structlog.testing.capture_logs() as lines:
        LogChannel().send(ALERT)
        LogChannel().send(replace(ALERT, level=Level.OK, previous=Level.CRITICAL, reasons=()))
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("error", "tailrace CRITICAL: orders on rs0: 80% of the oplog lies after the position"),
        ("info", "tailrace OK: orders on rs0: all is well again"),
    ]


def test_a_webhook_gets_the_alert_as_json_also_after_failures() -> None:
    hook, pauses = Hook(503, 429, 204), []
    with serving(hook) as url:
        WebhookChannel(url, sleep=pauses.append).send(ALERT)
    assert pauses == [1.0, 2.0]
    assert hook.got[-1] == {
        "text": "tailrace CRITICAL: orders on rs0: 80% of the oplog lies after the position",
        "stream": "orders",
        "shard": "rs0",
        "level": "critical",
        "previous": "ok",
        "reasons": ["80% of the oplog lies after the position"],
        "x": 1,
    }


@pytest.mark.parametrize(("answers", "posts"), [((400, 200), 1), ((302, 200), 1), ((500, 502, 503), 3)])
def test_a_webhook_that_refuses_is_an_error_that_keeps_the_url_secret(answers: tuple[int, ...], posts: int) -> None:
    hook = Hook(*answers)
    with serving(hook) as url, pytest.raises(AlertUndelivered) as refused:
        WebhookChannel(url, attempts=3, sleep=lambda seconds: None).send(ALERT)
    assert len(hook.got) == posts
    assert f"HTTP {answers[posts - 1]}" in refused.value.message
    assert "very-secret" not in refused.value.message


def test_a_webhook_that_never_answers_is_given_up_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(AlertUndelivered, match=r"127\.0\.0\.1 did not take an alert: TimeoutError"):
            WebhookChannel(url, timeout=0.05, attempts=2, sleep=lambda seconds: None).send(ALERT)


@pytest.mark.parametrize("url", ["no url at all", "file:///dev/null", "http://127.0.0.1:1/"])
def test_a_webhook_that_cannot_be_reached_is_an_error(url: str) -> None:
    with pytest.raises(AlertUndelivered):
        WebhookChannel(url, attempts=1).send(ALERT)


def place_after(ages: list[int], window: int) -> Lag:
    """A lag in a full oplog of so many seconds, sampled once a second with these ages of the position."""
    samples = []
    for second, age in enumerate(ages):
        last = START + second
        oplog = Oplog("rs0", Timestamp(last - window, 1), Timestamp(last, 1), 10**8, 10**8)
        samples.append(Sample(float(second), oplog, Timestamp(last - age, 1)))
    return lag_of(samples)


@given(st.lists(st.integers(0, 1), min_size=5, max_size=40))
def test_a_stream_that_keeps_up_in_an_oplog_of_seconds_raises_nothing(ages: list[int]) -> None:
    """Ages are rounded to seconds, and one of them is a third of such an oplog."""
    for end in range(5, len(ages) + 1):
        lag = place_after(ages[:end], window=3)
        if lag.trend is not None and lag.trend.keeps_up:
            assert verdict_of(lag, LIVE).level is Level.OK
        assert verdict_of(lag, LIVE).level is not Level.CRITICAL or not (lag.trend and lag.trend.gains)


def test_a_stream_that_keeps_up_with_a_jitter_of_a_second_keeps_up() -> None:
    for ages in ([0, 1] * 10, [1, 0] * 10, [1, 2] * 10, [2, 1, 2, 1, 0, 1, 2, 1, 2, 1, 0, 1], [0] * 8 + [1]):
        lag = place_after(ages, window=3)
        assert verdict_of(lag, LIVE).level is Level.OK, ages


def test_one_that_gains_is_not_critical_and_one_that_stands_still_is() -> None:
    gaining = place_after([900 - 5 * second for second in range(20)], window=1_000)
    assert verdict_of(gaining, BEHIND).level is Level.WARNING
    stopped = place_after([800 + second for second in range(20)], window=1_000)
    assert verdict_of(stopped, BEHIND).level is Level.CRITICAL
    lost = place_after([1_200 - 5 * second for second in range(20)], window=1_000)
    assert verdict_of(lost, BEHIND).level is Level.CRITICAL
