"""The one process that may move a stream's position: it holds the lease and keeps it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from tailrace.capture.positions import Lease, Position, PositionStore, this_process

_PARTS_OF_A_TERM = 3
"""A lease is renewed when a third of its term is over."""


class Leader:
    """A held lease; made by `elect`, given back at the end of the `with` block."""

    def __init__(self, store: PositionStore, lease: Lease, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.lease = lease
        self._clock = clock
        self._renewed = clock()

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
        return self._clock() - self._renewed > self.lease.seconds / _PARTS_OF_A_TERM

    def save(self, position: Position, *, reason: str | None = None) -> None:
        """Move the position, which also renews the lease."""
        self.renewed(self.store.save(position, self.lease, reason=reason))

    def renewed(self, lease: Lease) -> None:
        """Note that the lease was renewed, by a save or with a transaction."""
        self.lease = lease
        self._renewed = self._clock()

    def keep(self) -> None:
        """Renew the lease when that is due."""
        if self.is_due:
            self.renewed(self.store.renew(self.lease))
