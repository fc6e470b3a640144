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
"""The server drops whole sections, so that a full oplog holds at least this share of its limit."""
_LARGEST_DOCUMENT = 16 * 1024 * 1024


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
    member: str = ""
    """Whose oplog it is: members may differ in the size of theirs, and in when they joined."""
    others: tuple[Oplog, ...] = ()
    """Those of the other members, from which a stream would read after a failover."""

    @property
    def window_seconds(self) -> float:
        """The time between the first and the last entry."""
        return float(self.last.time - self.first.time)

    @property
    def capacity_bytes(self) -> int:
        """How many bytes the log can hold, going by what it is observed to hold."""
        return max(self.limit_bytes, self.used_bytes, 1)

    @property
    def section_bytes(self) -> float:
        """How much the server drops at once: a hundredth of a large oplog, a tenth of one under 160 MB."""
        return self.limit_bytes / min(100, max(10, self.limit_bytes // _LARGEST_DOCUMENT))

    @property
    def bytes_per_second(self) -> float:
        """The mean write rate over the window, in the log's own time."""
        return self.used_bytes / max(self.window_seconds, 1.0)

    @property
    def full(self) -> bool:
        """Whether new entries push out old ones, or are about to."""
        return self.used_bytes >= _NEARLY_FULL * self.limit_bytes

    def contains(self, position: Timestamp) -> bool:
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
        return self.bytes_per_second * self.age_of(position)


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

    @property
    def keeps_up(self) -> bool:
        """Whether the position did not fall back, but for the second that cluster times are rounded to."""
        return self.position_speed + 1.0 / self.over_seconds >= self.last_speed

    @property
    def gains(self) -> bool:
        """Whether the position comes nearer to the end, beyond that second."""
        return self.position_speed - 1.0 / self.over_seconds > self.last_speed


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
class Lag:
    """Where a consumer stands in one shard's oplog."""

    oplog: Oplog
    position: Timestamp
    age_seconds: float
    headroom_ratio: float
    lost: bool
    trend: Trend | None
    forecast: Forecast


def lag_of(samples: Sequence[Sample]) -> Lag:
    """Judge the newest sample in the light of those before it."""
    oplog, position = samples[-1].oplog, samples[-1].position
    lost = not oplog.contains(position)
    backlog = oplog.backlog_of(position)
    trend = trend_of(samples)
    return Lag(
        oplog=oplog,
        position=position,
        age_seconds=oplog.age_of(position),
        headroom_ratio=0.0 if lost else 1 - backlog / oplog.capacity_bytes,
        lost=lost,
        trend=trend,
        forecast=Forecast(0.0, 0.0, None) if lost else forecast(oplog, position, trend),
    )


def forecast(oplog: Oplog, position: Timestamp, trend: Trend | None) -> Forecast:
    """Extend the trends into the future; without a trend, take the mean write rate of the window.

    Two ways to the same moment, and the earlier one counts: the backlog reaches the capacity, or the first entry
    overtakes the position. They differ when the entries are not spread evenly, as after a quiet night. An entry leaves
    with its whole section, so a section's worth is taken off: better early than late.
    """
    backlog = oplog.backlog_of(position)
    free = oplog.capacity_bytes - oplog.section_bytes - backlog
    if trend is None:
        return Forecast(None, _time_for(free, oplog.bytes_per_second if oplog.window_seconds else 0.0), None)
    until_lost = _earliest(
        _time_for(free, trend.backlog_growth), _until_overtaken(oplog, position, trend, trend.position_speed)
    )
    if_stopped = _earliest(
        _time_for(free, trend.written_per_second), _until_overtaken(oplog, position, trend, 0.0), until_lost
    )
    return Forecast(until_lost, if_stopped, _time_for(backlog, -trend.backlog_growth) if backlog else None)


def _until_overtaken(oplog: Oplog, position: Timestamp, trend: Trend, position_speed: float) -> float | None:
    """Seconds until the first entry passes the position; None when it does not gain on it."""
    if trend.first_speed <= 0:
        return None
    meeting = _time_for(position.time - oplog.first.time, trend.first_speed - position_speed)
    return None if meeting is None else max(0.0, meeting - oplog.section_bytes / trend.written_per_second)


def trend_of(samples: Sequence[Sample]) -> Trend | None:
    """Measure the speeds over the newest samples; None when they span too little time."""
    recent = samples[-MOST_SAMPLES:]
    span = recent[-1].at - recent[0].at
    if len(recent) < 2 or span < LEAST_TREND_SECONDS:
        return None
    times = [sample.at for sample in recent]
    written = _written_per_second(recent)
    return Trend(
        over_seconds=span,
        written_per_second=written,
        first_speed=_first_speed(recent, written),
        last_speed=_slope(times, [sample.oplog.last.time for sample in recent]),
        position_speed=_slope(times, [sample.position.time for sample in recent]),
        backlog_growth=_slope(times, [sample.oplog.backlog_of(sample.position) for sample in recent]),
    )


def _written_per_second(samples: Sequence[Sample]) -> float:
    """The write rate: how much the log grew while nothing was dropped, which is exact.

    Only when something was dropped between any two samples, what was dropped is estimated and added.
    """
    pairs = list(pairwise(samples))
    quiet = [(before, after) for before, after in pairs if before.oplog.first == after.oplog.first]
    written = seconds = 0.0
    for before, after in quiet or pairs:
        dropped = before.oplog.used_bytes - before.oplog.backlog_of(after.oplog.first)
        written += max(0.0, after.oplog.used_bytes - before.oplog.used_bytes + dropped)
        seconds += after.at - before.at
    return written / seconds if seconds else 0.0


def _first_speed(samples: Sequence[Sample], written_per_second: float) -> float:
    """How fast the first entry moves on the whole, although it jumps by sections and may have jumped only once.

    A byte that is written pushes one out, so the speed is the write rate times the seconds of log that each
    dropped byte stood for. 0 when nothing was dropped.
    """
    start, end = samples[0], samples[-1]
    moved = end.oplog.first.time - start.oplog.first.time
    dropped = written_per_second * (end.at - start.at) - (end.oplog.used_bytes - start.oplog.used_bytes)
    return written_per_second * moved / dropped if moved > 0 and dropped > 0 else 0.0


def _slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The least-squares slope: fair to values that move in jumps, as a committed position does."""
    return linear_regression(times, values).slope


def _time_for(amount: float, speed: float) -> float | None:
    return max(0.0, amount) / speed if speed > 0 else None


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
