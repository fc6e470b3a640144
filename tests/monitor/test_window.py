"""The window's arithmetic against a simulated oplog, where the true moment of loss is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from bson import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tailrace.monitor.window import Lag, Oplog, Sample, forecast, lag_of, trend_of

START = 1_700_000_000
MB = 1_000_000


@dataclass(frozen=True)
class World:
    """A server that writes `rate` bytes a second into an oplog of `limit` bytes, and one consumer of it.

    Like the real one it drops a whole section, here a tenth of the limit, once the limit is passed.
    """

    rate: int
    limit: int
    age: int
    speed: float
    running_for: int

    def oplog(self, at: int) -> Oplog:
        written = self.rate * at
        dropped = math.ceil(max(0, written - self.limit) / self.section_bytes) * self.section_bytes
        first, last = START + int(dropped / self.rate), START + at
        return Oplog("rs0", Timestamp(first, 1), Timestamp(last, 1), int(written - dropped), self.limit)

    @property
    def section_bytes(self) -> float:
        return Oplog("rs0", Timestamp(1, 1), Timestamp(2, 1), 0, self.limit).section_bytes

    @property
    def section_seconds(self) -> float:
        return self.section_bytes / self.rate

    def position(self, at: int) -> Timestamp:
        moved = int(self.speed * (at - self.running_for))
        return Timestamp(START + self.running_for - self.age + moved, 1)

    def samples(self, seconds: int, every: int = 10) -> list[Sample]:
        moments = range(self.running_for - seconds, self.running_for + 1, every)
        return [Sample(float(at), self.oplog(at), self.position(at)) for at in moments]

    def lag(self) -> Lag:
        return lag_of(self.samples(WATCHED))

    def true_seconds_until_lost(self) -> int | None:
        """Let the world run on until the first entry has passed the position."""
        step = max(10, int(self.section_seconds / 50))
        for at in range(self.running_for, self.running_for + 40 * self.limit // self.rate, step):
            if not self.oplog(at).contains(self.position(at)):
                return at - self.running_for
        return None


WATCHED = 600


@st.composite
def worlds(draw: st.DrawFn, speeds: st.SearchStrategy[float]) -> World:
    """Worlds whose consumer stood between the first and the last entry all the time that it was watched."""
    speed = draw(speeds)
    window = draw(st.integers(18_000, 40_000))
    running_for = draw(st.integers(15_000, 3 * window))
    rate = draw(st.integers(10, 10_000))
    youngest = math.ceil(WATCHED * max(0.0, 1 - speed))
    oldest = min(window * 9 // 10, running_for) - math.ceil(WATCHED * max(1.0, speed)) - 100
    return World(rate, rate * window, draw(st.integers(youngest, oldest)), speed, running_for)


@given(worlds(st.floats(0, 0.9)))
def test_the_forecast_names_the_moment_of_loss_and_never_a_later_one(world: World) -> None:
    """It may be early by what the server drops at once, since nobody outside knows where its sections end."""
    lag = world.lag()
    truth = world.true_seconds_until_lost()
    assert not lag.lost
    assert truth is not None
    found = lag.forecast.until_lost
    assert found is not None
    pace = 1 - world.speed
    assert found <= truth * 1.1 + 30
    assert found >= truth * 0.8 - 2 * world.section_seconds / pace - 30


@given(worlds(st.just(0.0)))
def test_a_consumer_that_stands_still_is_lost_exactly_when_a_stopped_one_would_be(world: World) -> None:
    forecast = world.lag().forecast
    assert forecast.until_lost == pytest.approx(forecast.until_lost_if_stopped, rel=0.05, abs=30)


@given(worlds(st.floats(0, 0.99)))
def test_stopping_never_buys_time(world: World) -> None:
    forecast = world.lag().forecast
    assert forecast.until_lost_if_stopped is not None
    assert forecast.until_lost is None or forecast.until_lost_if_stopped <= forecast.until_lost


@given(worlds(st.floats(1.05, 20)))
def test_a_consumer_that_gains_on_the_log_never_loses_history_and_catches_up(world: World) -> None:
    forecast = world.lag().forecast
    assert forecast.until_lost is None
    truth = world.age / (world.speed - 1)
    assert (forecast.until_caught_up or 0) == pytest.approx(truth, rel=0.1, abs=30)


@given(worlds(st.just(1.0)))
def test_a_consumer_at_pace_never_loses_history(world: World) -> None:
    lag = world.lag()
    # What is left of a slope is rounding: it may not foretell a loss within fifty windows.
    assert lag.forecast.until_lost is None or lag.forecast.until_lost > 50 * lag.oplog.window_seconds


@given(worlds(st.just(0.0)), st.data())
def test_headroom_grows_with_the_position_from_nothing_to_all(world: World, data: st.DataObject) -> None:
    oplog = world.oplog(world.running_for)

    def headroom(time: int) -> float:
        return lag_of([Sample(0.0, oplog, Timestamp(time, 1))]).headroom_ratio

    earlier, later = sorted(data.draw(st.lists(st.integers(oplog.first.time, oplog.last.time), min_size=2, max_size=2)))
    assert 0 <= headroom(earlier) <= headroom(later) <= 1
    assert headroom(oplog.last.time) == 1
    assert headroom(oplog.last.time + 5) == 1


@given(filled=st.floats(0.01, 0.89))
def test_an_oplog_that_still_fills_up_is_no_danger_even_to_a_consumer_at_its_start(filled: float) -> None:
    first, last = Timestamp(START, 1), Timestamp(START + 3_600, 1)
    lag = lag_of([Sample(0.0, Oplog("rs0", first, last, int(filled * 100 * MB), 100 * MB), first)])
    assert not lag.oplog.full
    assert lag.headroom_ratio == pytest.approx(1 - filled, abs=0.001)
    assert not lag.lost


def test_a_full_oplog_gives_the_share_of_the_window_before_the_position() -> None:
    oplog = Oplog("rs0", Timestamp(START, 1), Timestamp(START + 1_000, 1), 100 * MB, 100 * MB)
    lag = lag_of([Sample(0.0, oplog, Timestamp(START + 250, 1))])
    assert (lag.age_seconds, lag.headroom_ratio, oplog.full) == (750.0, 0.25, True)


def test_one_sample_tells_how_long_a_stopped_consumer_has_at_the_windows_mean_rate() -> None:
    oplog = Oplog("rs0", Timestamp(START, 1), Timestamp(START + 1_000, 1), 100 * MB, 100 * MB)
    forecast = lag_of([Sample(0.0, oplog, Timestamp(START + 250, 1))]).forecast
    assert forecast.until_lost is None
    # A quarter of the window lies before it, and a tenth is dropped at once.
    assert forecast.until_lost_if_stopped == pytest.approx(150)


def test_a_position_before_the_first_entry_is_lost_unless_nothing_was_ever_dropped() -> None:
    before = Timestamp(START - 1, 1)
    rolled = Oplog("rs0", Timestamp(START, 1), Timestamp(START + 10, 1), MB, MB)
    complete = Oplog("rs0", Timestamp(START, 1), Timestamp(START + 10, 1), MB, 9 * MB, complete=True)
    lost = lag_of([Sample(0.0, rolled, before)])
    assert (lost.lost, lost.headroom_ratio, lost.forecast.until_lost) == (True, 0.0, 0.0)
    assert not lag_of([Sample(0.0, complete, before)]).lost


def test_after_a_quiet_night_the_first_entry_overtakes_sooner_than_the_bytes_suggest() -> None:
    """Old entries are sparse and new ones dense, so the first entry leaps through the night."""
    samples = [
        Sample(
            float(at),
            Oplog("rs0", Timestamp(START + 100 * at, 1), Timestamp(START + 40_000 + at, 1), 100 * MB, 100 * MB),
            Timestamp(START + 20_000, 1),
        )
        for at in range(0, 101, 10)
    ]
    lag = lag_of(samples)
    assert lag.trend is not None
    assert lag.trend.first_speed == pytest.approx(100)
    overtaken = (20_000 - 10_000) / 100
    assert lag.forecast.until_lost is not None
    assert overtaken / 2 < lag.forecast.until_lost <= overtaken
    by_bytes_alone = replace(lag.trend, first_speed=0.0)
    later = forecast(lag.oplog, lag.position, by_bytes_alone).until_lost
    assert later is None or later > overtaken


@given(worlds(st.just(0.5)))
def test_the_first_entry_has_its_true_speed_although_it_jumps(world: World) -> None:
    trend = trend_of(world.samples(WATCHED))
    assert trend is not None
    assert trend.written_per_second == pytest.approx(world.rate, rel=0.01)
    assert trend.first_speed == 0 or trend.first_speed == pytest.approx(1.0, rel=0.05)


def test_less_than_three_seconds_is_no_trend() -> None:
    world = World(rate=100, limit=100_000, age=100, speed=0.5, running_for=5_000)
    assert trend_of(world.samples(2, every=1)) is None
    assert trend_of(world.samples(4, every=1)) is not None


def test_a_fresh_oplog_without_any_window_divides_nothing_by_zero() -> None:
    now = Timestamp(START, 3)
    oplog = Oplog("rs0", Timestamp(START, 1), now, 300, MB, complete=True)
    lag = lag_of([Sample(0.0, oplog, Timestamp(START, 2))])
    assert lag.headroom_ratio == 1
    assert lag.forecast.until_lost_if_stopped is None
