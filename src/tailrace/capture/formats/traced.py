"""Puts the trace's context into the headers of sampled events' records."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.capture.formats.format import Format
from tailrace.capture.record import CompiledRecords, Record
from tailrace.telemetry import TRACEPARENT, SampledEvent, Sampler


class TracedFormat(Format):
    """Leaves batches without a sampled event to another format as they are.

    It stands behind the policy, so that trace ids are made of tokens as they leave the process.
    """

    def __init__(self, inner: Format, sampler: Sampler) -> None:
        super().__init__()
        self._inner = inner
        self._sampler = sampler
        self.content_type = inner.content_type

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event."""
        sampled = self._sampler.sampled([event])
        records = self._inner.records(event)
        return [_traced(record, sampled[0]) for record in records] if sampled else records

    def batch(self, events: Sequence[bytes]) -> Sequence[Record]:
        """Give the records for many events; sampled ones are made one by one."""
        found = [at for at, event in enumerate(events) if self._sampler.sampled([event])]
        if not found:
            return self._inner.batch(events)
        records: list[Record] = []
        done = 0
        for at in found:
            records += self._inner.batch(events[done:at])
            records += self._records(events[at])
            done = at + 1
        records += self._inner.batch(events[done:])
        return records


def _traced(record: Record, event: SampledEvent) -> Record:
    return record._replace(headers=[*record.headers, (TRACEPARENT, event.context.traceparent.encode())])


def traced_events(records: Sequence[Record]) -> list[bytes]:
    """Give the events whose records have a context; those of a batch inside the kernel have none."""
    if isinstance(records, CompiledRecords):
        return []
    traced = (record.event for record in records if record.headers and record.headers[-1][0] == TRACEPARENT)
    return list(dict.fromkeys(traced))
