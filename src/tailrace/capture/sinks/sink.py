"""The contract of sinks: `setup / add / flush`, with acknowledgements that come in order.

A producer drives a sink like this, and the position never moves ahead of what the sink acknowledged:

    sink.setup()
    count = sink.add(records)           # Backpressure: nothing was taken, try again after `retry_after` seconds
    pending.append((count, position))   # the position after these records
    while pending and pending[0][0] <= sink.acknowledged():
        store.save(pending.popleft()[1], lease)
    ...
    sink.flush(timeout)                 # before a stop: everything added is now acknowledged

A `TransactionalSink` keeps the position together with the records instead: after any number of `add`,
`commit(position, lease)` makes them and the position visible in one step and takes the place of `store.save`. Such
a sink is set up after the lease was acquired and before the position is loaded, because that ends what a dead writer
left unfinished.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from tailrace.capture.positions.position import Position
from tailrace.capture.positions.store import Lease
from tailrace.capture.record import Record
from tailrace.owned.closeable import Closeable

DEFAULT_BUFFER_BYTES = 64 * 1024 * 1024
"""How much a sink holds that is not yet acknowledged; one batch is always taken, however large."""


class Sink(Closeable):
    """Takes records in order and acknowledges them in order. Not for several threads at once."""

    @abstractmethod
    def setup(self) -> None:
        """Connect, and make what is missing (topics, files); raises SinkUnavailable when nobody answers."""

    def bind(self, seconds_left: Callable[[], float]) -> None:
        """Take what says how long this process still has the right to write; given before the first `add`.

        A sink that writes later than in `add`, `start_flush` and `flush`, in a thread of its own, asks it before each
        write: when nothing is left, another process may deliver the same stream.
        """

    @abstractmethod
    def add(self, records: Sequence[Record]) -> int:
        """Take all of the records and give how many were ever added, or raise Backpressure and take none.

        Returning does not mean that they are delivered; see `acknowledged`. Records that the other side refuses
        for good go to the dead letters and count as acknowledged when they are durable there.
        """

    @abstractmethod
    def acknowledged(self) -> int:
        """Give how many records, counted from the first that was added, are durable without a hole. Never waits.

        Raises SinkUnavailable when delivery failed in a way that only a new sink at the last position can mend.
        """

    def start_flush(self) -> None:
        """Send what is still batched up: nothing more comes for the moment. Waits for no answer."""

    @abstractmethod
    def flush(self, timeout: float) -> int:
        """Wait until everything added is acknowledged and give the count; SinkUnavailable after `timeout` seconds."""

    @property
    def dead_letters(self) -> int:
        """How many records went to the dead letters."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Give everything back, without waiting for what is not acknowledged."""


class TransactionalSink(Sink):
    """A sink that keeps the position together with the records."""

    @abstractmethod
    def commit(self, position: Position, lease: Lease) -> Lease:
        """Make the records since the last commit visible together with the position."""
