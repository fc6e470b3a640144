"""The one process that may move a stream's position: it holds the lease, keeps it, and writes only while it lasts.

A position store refuses a writer whose lease was taken over, but most sinks cannot: they take what comes. So the holder
itself stops in time. Its clock counts from before it asked for the lease, that of a challenger from after it was
written, so the holder's term ends first. Records are given to a sink only when the term lasts for longer than
`margin_of` yet, which is how long a sink may take for a record before it gives it up. A process that was stopped, or
whose
machine was suspended, finds the term over when it goes on, and gives nothing more to anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from tailrace.capture.positions import Lease, Position, PositionStore, boot_time, this_process
from tailrace.errors import LeaseExpired

_PARTS_OF_A_TERM = 3
"""A lease is renewed when a third of its term is over."""


def margin_of(lease_seconds: float) -> float:
    """Give how long a sink may take to deliver a record or to give it up."""
    return lease_seconds / 2


class Leader:
    """A held lease; made by `elect`, given back at the end of the `with` block."""

    def __init__(self, store: PositionStore, lease: Lease, clock: Callable[[], float] = boot_time) -> None:
        self.store = store
        self.lease = lease
        self._clock = clock

    @classmethod
    def elect(
        cls, store: PositionStore, name: str, *, seconds: float, timeout: float, sleep: Callable[[float], None]
    ) -> Leader:
        """Wait until nobody else holds the lease, and take it."""
        return cls(store, store.wait_for_lease(name, this_process(), seconds=seconds, timeout=timeout, sleep=sleep))

    def __enter__(self) -> Leader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.store.release(self.lease)
        except Exception:
            if error is None:
                raise

    @property
    def position(self) -> Position | None:
        """The position as the store has it."""
        return self.store.load(self.lease.name)

    @property
    def is_due(self) -> bool:
        """Whether the lease should be renewed now."""
        return self._clock() - self.lease.asked_at > self.lease.seconds / _PARTS_OF_A_TERM

    def seconds_left(self) -> float:
        """Give how long nobody else can have the lease; for any thread."""
        lease = self.lease
        return lease.asked_at + lease.seconds - self._clock()

    def check(self, *, in_flight: bool) -> None:
        """Make sure that what is given to a sink now is delivered or dropped before the lease ends.

        A lease that may have ended is renewed, which fails if another process has it, unless something is in flight:
        that has to be thrown away before anything else is done (LeaseExpired).
        """
        margin = margin_of(self.lease.seconds)
        left = self.seconds_left()
        if left <= margin and (left > 0 or not in_flight):
            self.renewed(self.store.renew(self.lease))
            left = self.seconds_left()
        if left <= margin:
            raise LeaseExpired(f"{self.lease.owner} did not renew its lease of {self.lease.name} in time")

    def save(self, position: Position, *, reason: str | None = None) -> None:
        """Move the position, which also renews the lease."""
        self.renewed(self.store.save(position, self.lease, reason=reason))

    def renewed(self, lease: Lease) -> None:
        """Note that the lease was renewed, by a save or with a transaction."""
        self.lease = lease

    def keep(self) -> None:
        """Renew the lease when that is due."""
        if self.is_due:
            self.renewed(self.store.renew(self.lease))
