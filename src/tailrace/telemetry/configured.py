"""From the settings to telemetry, or to none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.extras import missing_extra
from tailrace.settings import TelemetrySettings
from tailrace.telemetry.tracing import NO_TRACING, Tracing


@contextmanager
def telemetry_of(settings: TelemetrySettings) -> Iterator[Tracing]:
    """Export while the block runs; without an endpoint nothing is loaded or done."""
    if settings.endpoint is None:
        yield NO_TRACING
        return
    try:
        from tailrace.telemetry.exporting import exporting
    except ModuleNotFoundError as error:
        raise missing_extra(error, "telemetry.endpoint") from None
    with exporting(settings.endpoint.get_secret_value(), settings.sample_ratio, settings.service_name) as tracing:
        yield tracing
