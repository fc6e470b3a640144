"""A format done by the compiled kernel, for whole batches; the reference does what the kernel declines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.capture.formats.format import Format
from tailrace.capture.record import CompiledRecords, Record


class CompiledFormat(Format):
    """Gives the same records as its reference, several times as fast.

    The kernel declines what is rare: a document that JSON cannot carry whole, bytes that are no BSON, a rename. The
    reference makes the record of such an event, or raises what is wrong with it.
    """

    def __init__(self, reference: Format, compiled: Any, clock: Callable[[], int] = time.time_ns) -> None:
        super().__init__()
        self._reference = reference
        self._compiled = compiled
        self._clock = clock
        self.content_type = reference.content_type
        self.looks_up = reference.looks_up
        self.keeps_unrepresentable = reference.keeps_unrepresentable

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give the records for one event."""
        return self.batch([event])

    def batch(self, events: Sequence[bytes]) -> Sequence[Record]:
        """Give the records for many events; the reference takes its turn at those that the kernel declines."""
        made = self._compiled.batch(events, self.looks_up, self._clock())
        if not made.declined:
            return CompiledRecords(made)
        convert = self._reference.records
        records: list[Record] = []
        for each in made.records():
            if type(each) is bytes:
                records += convert(each)
            else:
                records.append(each)
        return records
