"""Spans and metrics to an OTLP endpoint, by OpenTelemetry's SDK.

What goes wrong here is logged by the SDK and changes nothing for the events: spans wait in a bounded queue, and what
does not fit is dropped. Headers (an API key) and certificates come from OpenTelemetry's own variables, such as
OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_CERTIFICATE.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
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
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from tailrace import __version__
from tailrace.monitor.metrics import REGISTRY
from tailrace.owned import repeated
from tailrace.telemetry.tracing import Span, Tracing

SECONDS_BETWEEN_METRICS: Final = 15.0
_SECONDS_TO_SEND: Final = 5.0
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_KINDS: Final = {"internal": SpanKind.INTERNAL, "producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}
_SCOPE: Final = InstrumentationScope("tailrace", __version__)


@contextmanager
def exporting(endpoint: str, sample_ratio: float, service_name: str) -> Iterator[Tracing]:
    """Export while the block runs, and at its end what is left."""
    resource = Resource.create(
        {
            "service.name": service_name,
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
    )
    base = endpoint.rstrip("/")
    spans = BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces", timeout=_SECONDS_TO_SEND))
    with _metrics(f"{base}/v1/metrics", resource):
        try:
            yield Tracing(sample_ratio, lambda span: spans.on_end(_readable(span, resource)))
        finally:
            spans.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def _metrics(url: str, resource: Resource) -> Iterator[None]:
    """Send the metrics of the process so often, and once more at the end."""
    exporter = OTLPMetricExporter(url, timeout=_SECONDS_TO_SEND)
    began = time.time_ns()

    def send() -> None:
        exporter.export(metrics_data(resource, _SCOPE, began), timeout_millis=_SECONDS_TO_SEND * 1000)

    try:
        with repeated(send, SECONDS_BETWEEN_METRICS, name="tailrace-otlp-metrics", seconds_to_end=2 * _SECONDS_TO_SEND):
            yield
    finally:
        send()
        exporter.shutdown()


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    own = span.span_id or secrets.token_hex(8)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, own, is_remote=False),
        parent=None if span.parent is None else _context(span.trace_id, span.parent, is_remote=True),
        resource=resource,
        attributes=span.attributes,
        kind=_KINDS[span.kind],
        start_time=span.begin,
        end_time=span.end,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: str, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, _SAMPLED)


_Labels = tuple[tuple[str, str], ...]


def metrics_data(resource: Resource, scope: InstrumentationScope, began: int) -> MetricsData:
    """Give all metrics as they are now; counters count since `began`."""
    metrics = list(_families(began, time.time_ns()))
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _families(began: int, now: int) -> Iterator[Metric]:
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
