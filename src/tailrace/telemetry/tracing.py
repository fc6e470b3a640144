"""Which events are traced, and the spans of each.

An event's trace id, and the ids of its spans for the write and for its publication, are parts of the SHA-256 of its
resume token. An event is sampled by its trace id, with the rule of OpenTelemetry's TraceIdRatioBased: whoever has a
smaller ratio samples some of those that others sample, never different ones. An event that is delivered twice has one
trace, with two spans for its publication.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tailrace.errors import TailraceError
from tailrace.event import ChangeEvent
from tailrace.extras import missing_extra
from tailrace.settings import TelemetrySettings

TRACEPARENT: Final = "traceparent"
"""The header of W3C's Trace Context, which sampled records have."""
_MADE_HERE: Final = "read"
"""operationType of a document of a snapshot, which is no write."""
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids that an event has, in hexadecimal."""

    trace_id: str
    write_span: str
    publish_span: str

    @classmethod
    def of(cls, token: str | bytes) -> TraceContext:
        """Derive them from the hexadecimal digits of the resume token."""
        digest = hashlib.sha256(token if isinstance(token, bytes) else token.encode()).hexdigest()
        return cls(digest[:32], digest[32:48], digest[48:])

    @property
    def traceparent(self) -> str:
        """What a consumer continues the trace with: it follows the publication."""
        return f"00-{self.trace_id}-{self.publish_span}-01"


@dataclass(frozen=True, slots=True)
class SampledEvent:
    """What spans tell of an event; nothing of its document."""

    context: TraceContext
    namespace: str
    operation: str
    written: int
    """Nanoseconds since 1970: `wallTime`, or from servers before 6.0 the seconds of `clusterTime`."""


class Sampler:
    """Chooses events by their trace ids."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._bound = round(ratio * 2**64)

    @property
    def sql(self) -> str:
        """The same choice as a condition on the column `token` in Spark."""
        if self._bound <= 0:
            return "false"
        return f"substring(sha2(token, 256), 17, 16) <= '{self._bound - 1:016x}'"

    def takes(self, token: str | bytes) -> bool:
        """Whether the event with this resume token is sampled."""
        digest = hashlib.sha256(token if isinstance(token, bytes) else token.encode()).digest()
        return int.from_bytes(digest[8:16]) < self._bound

    def sampled(self, events: Sequence[bytes]) -> list[SampledEvent]:
        """Give those of the events that are sampled, of the writes among them."""
        if self._bound <= 0:
            return []
        found = (self._of(event) for event in events)
        return [each for each in found if each is not None]

    def _of(self, event: bytes) -> SampledEvent | None:
        view = ChangeEvent(event)
        try:
            token = view.token_text
            if not self.takes(token) or view.operation_type == _MADE_HERE or view.is_recovered:
                return None
            written = written_at(view.wall_time, view.cluster_time.seconds)
            return SampledEvent(TraceContext.of(token), view.namespace, view.operation_type, written)
        except TailraceError:  # who makes a record of it says what is wrong
            return None


def written_at(wall_time_ms: int | None, cluster_seconds: int) -> int:
    """Give the time of a write in nanoseconds since 1970."""
    return cluster_seconds * _NANOSECONDS if wall_time_ms is None else wall_time_ms * 1_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """One step of an event's way."""

    name: str
    kind: str
    """internal, producer or consumer."""
    trace_id: str
    span_id: str | None
    """None is one that is chosen when it is exported."""
    parent: str | None
    begin: int
    end: int
    attributes: Mapping[str, str] = field(default_factory=dict)


class Tracing:
    """Makes the spans of sampled events, and hands them to `export`."""

    def __init__(self, ratio: float, export: Callable[[Span], None]) -> None:
        self.sampler = Sampler(ratio)
        self._export = export

    @property
    def is_on(self) -> bool:
        """Whether any event can be sampled."""
        return self.sampler.ratio > 0

    def sampled(self, events: Sequence[bytes]) -> Sequence[SampledEvent]:
        """Give those of the events that are sampled."""
        return self.sampler.sampled(events) if self.is_on else ()

    def published(self, events: Sequence[SampledEvent], stream: str, read: int) -> None:
        """Tell of events that were read at a time and are acknowledged now."""
        now = time.time_ns()
        for event in events:
            self._write(event, read)
            context, name = event.context, f"publish {event.namespace}"
            self._span(event, name, "producer", context.publish_span, context.write_span, read, now, stream=stream)

    def applied(self, events: Sequence[SampledEvent], job: str, began: int, *, is_direct: bool) -> None:
        """Tell of events that a job's batch, begun at a time, has taken to their destination.

        `is_direct` is whether the job reads MongoDB itself: then nobody else tells of the write.
        """
        now = time.time_ns()
        for event in events:
            if is_direct:
                self._write(event, began)
            parent = event.context.write_span if is_direct else event.context.publish_span
            self._span(event, f"{job} {event.namespace}", "consumer", None, parent, began, now, job=job)

    def _write(self, event: SampledEvent, read: int) -> None:
        """Tell of the write: from its own time to when it was read here, which the clocks of two machines bound."""
        name = f"{event.operation} {event.namespace}"
        self._span(event, name, "internal", event.context.write_span, None, min(event.written, read), read)

    def _span(
        self,
        event: SampledEvent,
        name: str,
        kind: str,
        span_id: str | None,
        parent: str | None,
        begin: int,
        end: int,
        **more: str,
    ) -> None:
        database, _, collection = event.namespace.partition(".")
        attributes = {
            "db.system.name": "mongodb",
            "db.namespace": database,
            "db.collection.name": collection,
            "db.operation.name": event.operation,
            **{f"tailrace.{key}": value for key, value in more.items()},
        }
        self._export(Span(name, kind, event.context.trace_id, span_id, parent, begin, end, attributes))


def _nowhere(_: Span) -> None:
    """Export nothing."""


NO_TRACING: Final = Tracing(0.0, _nowhere)
"""Samples nothing, and costs a call a batch."""


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
