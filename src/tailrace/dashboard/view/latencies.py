"""How long events take from hop to hop, as percentiles over the last minutes."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.dashboard.answers import ObservedEvent
from tailrace.dashboard.values import Latency
from tailrace.raw.cluster_time import ClusterTime

SECONDS_KEPT = 300.0
_MOST_SAMPLES = 5_000
_MOST_EVENTS = 20_000
HOPS = {
    "mongodb-kafka": ("MongoDB → Kafka", False),
    "kafka-redis": ("Kafka → Redis", False),
    "kafka-iceberg": ("Kafka → Iceberg", False),
    "mongodb-redis": ("MongoDB → Redis, end to end", True),
    "mongodb-iceberg": ("MongoDB → Iceberg, end to end", True),
}
"""Every hop with its title, and whether it is the whole way."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    seconds: float
    resolution: float


@dataclass(frozen=True, slots=True)
class _Known:
    """When an event happened and when it was in its topic."""

    at: float
    resolution: float
    arrived_at: float | None


class LatencyBook:
    """Takes what was observed where, and gives percentiles. Written by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[str, deque[_Sample]] = {hop: deque(maxlen=_MOST_SAMPLES) for hop in HOPS}
        self._events: OrderedDict[int, _Known] = OrderedDict()
        self._last: dict[tuple[str, str], int] = {}
        self._newest: dict[tuple[str, str], float] = {}

    def event(self, event: ObservedEvent) -> None:
        """Note an event of a topic; documents of a snapshot happened before anybody measured."""
        if event.line.operation == "read":
            return
        known = _Known(event.line.at, event.resolution, event.arrived_at)
        with self._lock:
            self._events[event.cluster_time] = known
            if len(self._events) > _MOST_EVENTS:
                self._events.popitem(last=False)
            if event.arrived_at is not None:
                self._add("mongodb-kafka", event.line.observed_at, event.arrived_at - known.at, known.resolution)

    def arrived(self, where: str, name: str, cluster_time: int, at: float) -> None:
        """Note that a job has come up to an event: `where` is redis or iceberg, `name` the job or table.

        The time of an event that was itself observed is known by the millisecond, of others by the second.
        """
        with self._lock:
            if self._last.get((where, name)) == cluster_time:
                return
            is_first = (where, name) not in self._last
            self._last[where, name] = cluster_time
            if is_first:
                return  # it may have arrived long before anybody looked
            known = self._events.get(cluster_time) or _Known(float(ClusterTime(cluster_time).seconds), 1.0, None)
            self._newest[where, name] = max(0.0, at - known.at)
            self._add(f"mongodb-{where}", at, at - known.at, known.resolution)
            if known.arrived_at is not None:
                self._add(f"kafka-{where}", at, at - known.arrived_at, 0.001)

    def newest(self, where: str) -> dict[str, float]:
        """Give the newest measurement of each job or table, by name."""
        with self._lock:
            return {name: seconds for (location, name), seconds in self._newest.items() if location == where}

    def summary(self, now: float, seconds: float = SECONDS_KEPT) -> list[Latency]:
        """Give the percentiles of every hop that was measured in the last five minutes, or so many seconds."""
        found = []
        for hop, (title, is_end_to_end) in HOPS.items():
            with self._lock:
                recent = [sample for sample in self._samples[hop] if sample.at > now - seconds]
            if recent:
                ordered = sorted(sample.seconds for sample in recent)
                p50, p95, p99 = (percentile(ordered, share) for share in (0.5, 0.95, 0.99))
                exact = max(sample.resolution for sample in recent)
                found.append(Latency(hop, title, is_end_to_end, p50, p95, p99, len(recent), exact))
        return found

    def _add(self, hop: str, at: float, seconds: float, resolution: float) -> None:
        # Clocks of two machines differ by a little: nothing arrives before it happened.
        self._samples[hop].append(_Sample(at, max(0.0, seconds), resolution))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Give the smallest value that at least this share of the sorted values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def bucket_percentile(buckets: Mapping[float, float], share: float) -> float | None:
    """Give about what a histogram says of a percentile; None when nothing was counted.

    `buckets` are counts up to a bound, as Prometheus has them, of the time in question. Inside a bucket the values are
    taken to be spread evenly, as `histogram_quantile` does.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted, below, before = share * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return below
            inside = buckets[bound] - before
            return below + (bound - below) * ((wanted - before) / inside if inside else 1.0)
        below, before = bound, buckets[bound]
    return below
