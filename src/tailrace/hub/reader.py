"""How a subscriber catches up: by a scan of its own until the shared ring has what comes next, then from the ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.oplog.source import OplogBatch, OplogReader

if TYPE_CHECKING:
    from tailrace.hub.hub import Hub


class CatchUpReader:
    """One pass over a shard's oplog that never waits at its end."""

    def __init__(self, hub: Hub, since: int) -> None:
        self._hub = hub
        self._since = since
        self._covered = since - 1
        self._scan: OplogReader | None = None
        self._closed = False
        self.is_untouched = True
        """Whether nothing has been read yet."""

    def __iter__(self) -> Iterator[OplogBatch]:
        return self

    def __next__(self) -> OplogBatch:
        if self._closed:
            raise StopIteration
        self.is_untouched = False
        batch = self._hub.recent(self._covered)
        if batch is None:
            batch = self._scan_on()
        else:
            self._end_scan()
        if batch.entries:
            self._covered = batch.reached
        return OplogBatch(batch.entries, max(batch.reached, self._since))

    @property
    def settled_at(self) -> int | None:
        """The time up to which everything was read; None while the ring begins later, or has not come so far."""
        return self._covered if self._hub.holds(self._covered) else None

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self._closed = True
        self._end_scan()

    def _scan_on(self) -> OplogBatch:
        if self._scan is None:
            self._scan = self._hub.oplog.open(self._covered + 1)
            self._hub.count_scan(1)
        return next(self._scan)

    def _end_scan(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None
            self._hub.count_scan(-1)
