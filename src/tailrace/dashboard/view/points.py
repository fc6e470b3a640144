"""The points of the charts at one moment, by the name of their series.

lag/STREAM/SHARD      seconds that a position is behind its oplog
rate/op/OPERATION     events per second, and the same for rate/ns/NAMESPACE and rate/total
batch/events, batch/bytes, batch/count   mean size of the committed batches, and how many there are per second
latency/HOP/p50       seconds, also p95 and p99, of what arrived in the last half minute
commit/p50            seconds from the last read of a batch to its committed position, also p95 and p99
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tailrace.dashboard.sources.metrics_text import Metrics, Rates
from tailrace.dashboard.values import Latency
from tailrace.dashboard.view.latencies import bucket_percentile
from tailrace.dashboard.view.observed import Observed

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
