"""How long a shard's history lasts, where a consumer stands in it, and when it would be lost.

Pure functions over samples; `reader.py` takes the samples. The arithmetic is one idea: an oplog is a queue with a
capacity in bytes, and a consumer's backlog is the part of it behind the newest entry that it has not read. History is
lost when the backlog reaches the capacity. So

    headroom    = 1 - backlog / capacity
    until lost  = (capacity - backlog) / growth of the backlog

For a full oplog this is the share of the window that lies before the position. For one that still fills up, the free
space counts as headroom: a consumer at the very first entry of a nearly empty oplog is in no danger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import linear_regression

from bson import Timestamp

LEAST_TREND_SECONDS = 3.0
"""Cluster times count whole seconds: a trend over less than this is mostly rounding."""
MOST_SAMPLES = 120
"""How many samples a trend needs at most; older ones describe a load that is over."""
_NEARLY_FULL = 0.9
"""The server drops whole sections of up to a tenth of the oplog, so that a full one holds at least this share."""


@dataclass(frozen=True, slots=True)
class Oplog:
    """One reading of a shard's oplog.

    `used_bytes` may exceed `limit_bytes`: entries stay until a checkpoint (once a minute) has made them unnecessary
    for crash recovery, and as long as `oplogMinRetentionHours` says. `complete` means that the log still begins with
    the entry that initiated the replica set, so that nothing has ever been dropped.
    """

    shard: str
    first: Timestamp
    last: Timestamp
    used_bytes: int
    limit_bytes: int
    complete: bool = False

    @property
    def window_seconds(self) -> float:
        """The time between the first and the last entry."""
        return float(self.last.time - self.first.time)

    @property
    def capacity_bytes(self) -> int:
        """How many bytes the log can hold, going by what it is seen to hold."""
        return max(self.limit_bytes, self.used_bytes, 1)

    @property
    def full(self) -> bool:
        """Whether new entries push out old ones, or are about to."""
        return self.used_bytes >= _NEARLY_FULL * self.limit_bytes

    def holds(self, position: Timestamp) -> bool:
        """Whether a stream can go on from this position: the server's own rule for ChangeStreamHistoryLost.

        Seen on 4.4, 5.0 and 6.0. 4.2 refuses the very time of the first entry too, and says 280 instead of 286.
        """
        return self.complete or position >= self.first

    def age_of(self, position: Timestamp) -> float:
        """Seconds from the position to the last entry, both in the log's own time, so that no clock can be wrong."""
        return float(max(0, self.last.time - position.time))

    def backlog_of(self, position: Timestamp) -> float:
        """About how many bytes lie after the position, as if the entries were spread evenly over the window."""
        if position >= self.last:
            return 0.0
        if position <= self.first:
            return float(self.used_bytes)
        return self.used_bytes * self.age_of(position) / max(self.window_seconds, 1.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """A reading with the time it was taken, in seconds of any clock, and the consumer's position then."""

    at: float
    oplog: Oplog
    position: Timestamp


@dataclass(frozen=True, slots=True)
class Trend:
    """How the log and the consumer moved over the samples. Speeds are seconds of log per second: 1 is pace."""

    over_seconds: float
    written_per_second: float
    first_speed: float
    last_speed: float
    position_speed: float
    backlog_growth: float
    """Bytes per second; negative when the consumer gains on the log."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What happens next. None stands for never, or not as long as the trend holds."""

    until_lost: float | None
    """Seconds until the position drops out of the oplog, going by the trends."""
    until_lost_if_stopped: float | None
    """The same if the consumer stopped now; None when nothing is being written."""
    until_caught_up: float | None
    """Seconds until the backlog is gone, when it shrinks."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a consumer stands in one shard's oplog."""

    oplog: Oplog
    position: Timestamp
    age_seconds: float
    backlog_bytes: float
    headroom_ratio: float
    lost: bool
    trend: Trend | None
    forecast: Forecast


def place_of(samples: Sequence[Sample]) -> Place:
    """Judge the newest sample in the light of those before it."""
    oplog, position = samples[-1].oplog, samples[-1].position
    lost = not oplog.holds(position)
    backlog = oplog.backlog_of(position)
    trend = trend_of(samples)
    return Place(
        oplog=oplog,
        position=position,
        age_seconds=oplog.age_of(position),
        backlog_bytes=backlog,
        headroom_ratio=0.0 if lost else 1 - backlog / oplog.capacity_bytes,
        lost=lost,
        trend=trend,
        forecast=Forecast(0.0, 0.0, None) if lost else forecast(oplog, position, trend),
    )


def forecast(oplog: Oplog, position: Timestamp, trend: Trend | None) -> Forecast:
    """Extend the trends into the future; without a trend, take the mean write rate of the window.

    Two ways to the same moment, and the earlier one counts: the backlog reaches the capacity, or the first entry
    overtakes the position. They differ when the entries are not spread evenly, as after a quiet night.
    """
    backlog = oplog.backlog_of(position)
    free = oplog.capacity_bytes - backlog
    if trend is None:
        mean_rate = oplog.used_bytes / oplog.window_seconds if oplog.window_seconds else 0.0
        return Forecast(None, _time_for(free, mean_rate), None)
    distance = position.time - oplog.first.time
    chased = trend.first_speed > 0
    by_size = _time_for(free, trend.backlog_growth)
    by_first_entry = _time_for(distance, trend.first_speed - trend.position_speed) if chased else None
    stopped_by_size = _time_for(free, trend.written_per_second)
    stopped_by_first_entry = _time_for(distance, trend.first_speed) if chased else None
    return Forecast(
        until_lost=_earliest(by_size, by_first_entry),
        until_lost_if_stopped=_earliest(stopped_by_size, stopped_by_first_entry),
        until_caught_up=_time_for(backlog, -trend.backlog_growth) if backlog else None,
    )


def trend_of(samples: Sequence[Sample]) -> Trend | None:
    """Measure the speeds over the newest samples; None when they span too little time."""
    recent = samples[-MOST_SAMPLES:]
    span = recent[-1].at - recent[0].at
    if len(recent) < 2 or span < LEAST_TREND_SECONDS:
        return None
    times = [sample.at for sample in recent]
    return Trend(
        over_seconds=span,
        written_per_second=max(0.0, _slope(times, _written_bytes(recent))),
        first_speed=_slope(times, [sample.oplog.first.time for sample in recent]),
        last_speed=_slope(times, [sample.oplog.last.time for sample in recent]),
        position_speed=_slope(times, [sample.position.time for sample in recent]),
        backlog_growth=_slope(times, [sample.oplog.backlog_of(sample.position) for sample in recent]),
    )


def _written_bytes(samples: Sequence[Sample]) -> list[float]:
    """How much had been written since the first sample, at each: what came in, plus what was pushed out meanwhile."""
    written = [0.0]
    for before, after in pairwise(samples):
        pushed_out = before.oplog.used_bytes - before.oplog.backlog_of(after.oplog.first)
        written.append(written[-1] + max(0.0, after.oplog.used_bytes - before.oplog.used_bytes + pushed_out))
    return written


def _slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The least-squares slope: fair to values that move in jumps, as the first entry and a committed position do."""
    return linear_regression(times, values).slope


def _time_for(amount: float, speed: float) -> float | None:
    return max(0.0, amount) / speed if speed > 0 else None


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
