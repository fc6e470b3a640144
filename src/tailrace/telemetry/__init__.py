"""OpenTelemetry: traces of sampled events, from the write to features and tables, and the metrics by OTLP.

Which events are sampled, and the ids of their spans, follow from their resume tokens alone (`tracing`), so that all
processes agree without asking each other. The SDK is loaded only when `telemetry.endpoint` is set (`exporting`).
"""

from tailrace.telemetry.tracing import NO_TRACING as NO_TRACING
from tailrace.telemetry.tracing import TRACEPARENT as TRACEPARENT
from tailrace.telemetry.tracing import SampledEvent as SampledEvent
from tailrace.telemetry.tracing import Sampler as Sampler
from tailrace.telemetry.tracing import TraceContext as TraceContext
from tailrace.telemetry.tracing import Tracing as Tracing
