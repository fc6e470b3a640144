"""The metrics of the process, as OpenTelemetry's SDK has them: the same numbers and names that Prometheus reads.

Counters are without `_total`, which OpenTelemetry's translation to Prometheus puts back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from tailrace.monitor.metrics import REGISTRY

_Labels = tuple[tuple[str, str], ...]


def metrics_data(resource: Resource, scope: InstrumentationScope, began: int) -> MetricsData:
    """Give all metrics as they are now; counters count since `began`."""
    metrics = list(_metrics(began, time.time_ns()))
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metrics(began: int, now: int) -> Iterator[Metric]:
    for family in REGISTRY.collect():
        data: Any
        if family.type == "histogram":
            data = Histogram(list(_histograms(family.samples, began, now)), AggregationTemporality.CUMULATIVE)
        else:
            name = f"{family.name}_total" if family.type == "counter" else family.name
            points = [
                NumberDataPoint(sample.labels, began if family.type == "counter" else None, now, sample.value)  # type: ignore[arg-type]
                for sample in family.samples
                if sample.name == name
            ]
            data = Sum(points, AggregationTemporality.CUMULATIVE, True) if family.type == "counter" else Gauge(points)
        if data.data_points:
            yield Metric(family.name, family.documentation, "", data)


def _histograms(samples: Iterable[Any], began: int, now: int) -> Iterator[HistogramDataPoint]:
    """Give a point for each set of labels; Prometheus counts in a bucket what is in all smaller ones too."""
    buckets: dict[_Labels, list[tuple[float, float]]] = {}
    sums: dict[_Labels, float] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, found in buckets.items():
        found.sort()
        counts = [count - before for (_, count), (_, before) in zip(found, [(0.0, 0.0), *found], strict=False)]
        yield HistogramDataPoint(
            dict(labels),
            began,
            now,
            int(found[-1][1]),
            sums.get(labels, 0.0),
            [int(count) for count in counts],
            [bound for bound, _ in found if not math.isinf(bound)],
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
        )
