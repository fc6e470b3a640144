"""What the charts show: their points at one moment, and the last hour of each series in a fixed amount of memory.

    lag/STREAM/SHARD      seconds that a position is behind its oplog
    rate/op/OPERATION     events per second, and the same for rate/ns/NAMESPACE and rate/total
    batch/events, batch/bytes, batch/count   mean size of the committed batches, and how many there are per second
    latency/HOP/p50       seconds, also p95 and p99, of what arrived in the last half minute
    commit/p50            seconds from the last read of a batch to its committed position, also p95 and p99

Five minutes are kept by the second and an hour in steps of ten seconds, each of which is the mean of what was measured
in it. A series is two arrays of doubles: 5 kB. There are at most `MOST_SERIES`.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tailrace.dashboard.answers import History
from tailrace.dashboard.sources.metrics_text import Metrics, Rates
from tailrace.dashboard.values import Latency
from tailrace.dashboard.view.latencies import bucket_percentile
from tailrace.dashboard.view.observed import Observed

MOST_SERIES = 400
_MISSING = math.nan


class Track:
    """Several series over the same moments: a ring of `length` steps of `step` seconds."""

    def __init__(self, span: str, step: float, length: int) -> None:
        self.span = span
        self._step = step
        self._length = length
        self._times = array("d", [_MISSING]) * length
        self._series: dict[str, array[float]] = {}
        self._counts: dict[str, int] = {}
        self._slot = -1

    def add(self, at: float, points: Mapping[str, float]) -> None:
        """Put points into the step that a moment belongs to; several of a step become their mean."""
        slot = int(at // self._step)
        if slot != self._slot:
            self._turn_to(slot)
        location = slot % self._length
        for name, value in points.items():
            series = self._series.get(name)
            if series is None:
                if len(self._series) >= MOST_SERIES:
                    self._forget_empty()
                if len(self._series) >= MOST_SERIES:
                    continue
                series = self._series[name] = array("d", [_MISSING]) * self._length
            count = self._counts.get(name, 0)
            series[location] = value if count == 0 else series[location] + (value - series[location]) / (count + 1)
            self._counts[name] = count + 1

    def read(self) -> History:
        """Give everything, the oldest first."""
        order = [(self._slot + 1 + number) % self._length for number in range(self._length)]
        locations = [location for location in order if not math.isnan(self._times[location])]
        series = {
            name: [None if math.isnan(values[location]) else round(values[location], 4) for location in locations]
            for name, values in self._series.items()
        }
        return History(self.span, self._step, [self._times[location] for location in locations], series)

    def _turn_to(self, slot: int) -> None:
        """Begin a step; those in between, in which nobody measured, stay empty."""
        first = slot if self._slot < 0 else max(self._slot + 1, slot - self._length + 1)
        for each in range(first, slot + 1):
            location = each % self._length
            self._times[location] = each * self._step
            for series in self._series.values():
                series[location] = _MISSING
        self._slot = slot
        self._counts.clear()

    def _forget_empty(self) -> None:
        for name in [name for name, values in self._series.items() if all(map(math.isnan, values))]:
            del self._series[name]


class HistoryBook:
    """The tracks of all spans; written by one thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tracks = {track.span: track for track in (Track("5m", 1.0, 300), Track("1h", 10.0, 360))}

    def add(self, at: float, points: Mapping[str, float]) -> None:
        """Take the points of one moment."""
        with self._lock:
            for track in self._tracks.values():
                track.add(at, points)

    def read(self, span: str) -> History | None:
        """Give the series of a span, `5m` or `1h`."""
        track = self._tracks.get(span)
        if track is None:
            return None
        with self._lock:
            return track.read()


_MOST_NAMESPACES = 7
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def points_of(observed: Observed, rates: Rates, latency: Sequence[Latency]) -> dict[str, float]:
    """Give the newest point of every series."""
    points = {
        f"lag/{report.stream}/{report.oplog.shard}": report.lag.age_seconds
        for report in observed.reports
        if report.stream is not None and report.lag is not None
    }
    for one in latency:
        points |= {f"latency/{one.hop}/{name}": getattr(one, name) for name in _PERCENTILES}
    answering = [reading.metrics for reading in observed.answering]
    if answering:
        points |= _rate_points(answering, rates, observed.now)
        points |= _batch_points(answering, rates, observed.now)
        points |= _commit_points(answering, rates, observed.now)
    return points


def _rate_points(metrics: Iterable[Metrics], rates: Rates, now: float) -> dict[str, float]:
    by_operation: dict[str, float] = defaultdict(float)
    by_namespace: dict[str, float] = defaultdict(float)
    for (operation, namespace), total in _summed(metrics, "tailrace_events_total", "op", "namespace").items():
        rate = rates.per_second(("points", operation, namespace), total, now)
        by_operation[operation] += rate
        by_namespace[namespace or "cluster"] += rate
    busiest = sorted(by_namespace, key=lambda name: -by_namespace[name])
    points = {"rate/total": sum(by_operation.values())}
    points |= {f"rate/op/{operation}": rate for operation, rate in by_operation.items()}
    points |= {f"rate/ns/{name}": by_namespace[name] for name in busiest[:_MOST_NAMESPACES]}
    if len(busiest) > _MOST_NAMESPACES:
        points["rate/ns/others"] = sum(by_namespace[name] for name in busiest[_MOST_NAMESPACES:])
    return points


def _batch_points(metrics: Sequence[Metrics], rates: Rates, now: float) -> dict[str, float]:
    """Give mean sizes; without a batch there is no size."""
    batches, seconds = rates.growth("batches", sum(m.total("tailrace_batches_total") for m in metrics), now)
    events, _ = rates.growth("batch events", sum(m.total("tailrace_events_total") for m in metrics), now)
    size, _ = rates.growth("batch bytes", sum(m.total("tailrace_bytes_total") for m in metrics), now)
    if batches <= 0 or seconds <= 0:
        return {}
    return {"batch/events": events / batches, "batch/bytes": size / batches, "batch/count": batches / seconds}


def _commit_points(metrics: Iterable[Metrics], rates: Rates, now: float) -> dict[str, float]:
    buckets: dict[float, float] = {}
    for (bound,), total in _summed(metrics, "tailrace_commit_seconds_bucket", "le").items():
        limit = math.inf if bound == "+Inf" else float(bound)
        buckets[limit], _ = rates.growth(("commit", bound), total, now)
    found = {name: bucket_percentile(buckets, share) for name, share in _PERCENTILES.items()}
    return {f"commit/{name}": value for name, value in found.items() if value is not None}


def _summed(metrics: Iterable[Metrics], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for each in metrics:
        for key, value in each.by(name, *labels).items():
            sums[key] += value
    return sums
