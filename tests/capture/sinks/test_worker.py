"""Sinks that deliver in a thread of their own, which has to stop when the lease of the stream has ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sink_sides import records
from tailrace.capture.record import Record
from tailrace.capture.sinks.worker import WorkerSink
from tailrace.errors import SinkUnavailable
from waiting import wait_until


class Collecting(WorkerSink):
    def __init__(self) -> None:
        super().__init__()
        self.delivered: list[Record] = []

    def connect(self) -> None:
        """Nothing to connect to."""

    def deliver(self, records: Sequence[Record]) -> None:
        self.delivered.extend(records)


def test_nothing_is_delivered_after_the_end_of_the_lease() -> None:
    left = 10.0
    with Collecting() as sink:
        sink.setup()
        sink.bind(lambda: left)
        sink.add(records(1))
        wait_until(lambda: sink.acknowledged() == 1, "the first record is delivered")
        left = 0.0
        sink.add(records(2))
        with pytest.raises(SinkUnavailable, match="lease"):
            sink.flush(30)
    assert len(sink.delivered) == 1
