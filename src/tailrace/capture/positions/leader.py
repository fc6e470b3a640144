"""The one process that may move a stream's position: it holds the lease, keeps it, and writes only while it lasts.

A position store refuses a writer whose lease was taken over, but most sinks cannot: they take what comes. So the holder
itself stops in time. Its clock counts from before it asked for the lease, that of a challenger from after it was
written, so the holder's term ends first. Records are given to a sink only when the term lasts for longer than
`margin_of` yet, which is how long a sink may take for a record before it gives it up. A process that was stopped, or
whose machine was suspended, finds the term over when it goes on, and gives nothing more to anybody.

The thread that reads and delivers renews the lease by the way. While it waits for a broker or a server that is away, a
thread of the leader's own does: a lease that ends in such a call would pass to and fro between producers, none of which
can do anything. It renews no lease that has ended, and none for a thread that was not heard of for longer than any of
its calls may take: a process that hangs loses its stream. With a transaction open, or in a commit that waits, it keeps
the lease beside its cell, by connections of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from tailrace.capture.positions import Lease, Position, PositionStore, boot_time, this_process
from tailrace.capture.positions.side_cell import SideCell
from tailrace.capture.positions.store import RENEWAL, TransactionalCells
from tailrace.errors import LeaseExpired, TailraceError
from tailrace.owned import OwnedThread

_PARTS_OF_A_TERM = 3
"""A lease is renewed when a third of its term is over."""
_POLLS_IN_A_TERM = 10
_LONGEST_CALL = 120.0
"""Seconds; a dead letter that waits for its broker takes the longest."""
_SECONDS_TO_END = 60.0


def margin_of(lease_seconds: float) -> float:
    """Give how long a sink may take to deliver a record or to give it up."""
    return lease_seconds / 2


class Leader:
    """A held lease; made by `elect`, given back at the end of the `with` block."""

    def __init__(self, store: PositionStore, lease: Lease, clock: Callable[[], float] = boot_time) -> None:
        self.store = store
        self.lease = lease
        self._clock = clock
        self._heard_at = clock()
        self._ends = threading.Event()
        self._renewer = OwnedThread(self._keep_while_waiting, name="tailrace-lease", on_death=lambda _: 1.0)

    @classmethod
    def elect(
        cls, store: PositionStore, name: str, *, seconds: float, timeout: float, sleep: Callable[[float], None]
    ) -> Leader:
        """Wait until nobody else holds the lease, and take it."""
        return cls(store, store.wait_for_lease(name, this_process(), seconds=seconds, timeout=timeout, sleep=sleep))

    def __enter__(self) -> Leader:
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._renewer.join(_SECONDS_TO_END)
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
        self._heard_at = self._clock()
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
        self._heard_at = self._clock()
        self.lease = lease

    def keep(self) -> None:
        """Renew the lease when that is due."""
        self._heard_at = self._clock()
        if self.is_due:
            self.renewed(self.store.renew(self.lease))

    def _keep_while_waiting(self) -> None:
        """Renew the lease when half of its term is over: so late only because the other thread waits for somebody."""
        while not self._ends.wait(self.lease.seconds / _POLLS_IN_A_TERM):
            is_heard = self._clock() - self._heard_at < _LONGEST_CALL
            if is_heard and 0 < self.seconds_left() < margin_of(self.lease.seconds):
                try:
                    renewed = self._renew_meanwhile(self.lease)
                except TailraceError:
                    continue  # the other thread meets it too, and answers it
                if renewed.asked_at > self.lease.asked_at:
                    self.lease = renewed

    def _renew_meanwhile(self, lease: Lease) -> Lease:
        cells, renewals = self.store.cells, self.store.renewals
        if renewals is None or not isinstance(cells, TransactionalCells) or not cells.holds_records(lease.name):
            return self.store.renew(lease)
        asked_at = self._clock()
        SideCell(renewals, RENEWAL, lease.name).update(lambda _: {"epoch": lease.epoch, "owner": lease.owner})
        return replace(lease, asked_at=asked_at)
