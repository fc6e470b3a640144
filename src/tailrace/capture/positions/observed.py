"""How long cells were seen to stay the same, by a clock of this machine: the age of a lease where no other is known."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

# On macOS, which has no CLOCK_BOOTTIME, CLOCK_MONOTONIC goes on while the machine sleeps; on Linux it does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Give the seconds since this machine was started, those included in which it was suspended."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class _Watch:
    cell: bytes | None
    since: float
    """When the first read that gave this cell had ended."""
    until: float
    """When the last one that gave it had begun."""
    is_interrupted: bool = False
    """Whether a read has failed since."""


class ObservedCells:
    """Notes what was read of each name; a cell that is read again unchanged was the same all the time between.

    That is so because every change raises the counter of a cell. Time in which the store did not answer does not count:
    the holder of a lease could not renew it then either.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watches: dict[str, _Watch] = {}

    def read(self, name: str, read: Callable[[str], bytes | None]) -> bytes | None:
        """Read a cell and note when."""
        began = self._clock()
        known = self._watches.get(name)
        try:
            cell = read(name)
        except Exception:
            if known is not None:
                self._watches[name] = replace(known, is_interrupted=True)
            raise
        if known is not None and known.cell == cell:
            unseen = began - known.until if known.is_interrupted else 0.0
            self._watches[name] = _Watch(cell, known.since + unseen, max(known.until, began))
        else:
            now = self._clock()
            self._watches[name] = _Watch(cell, now, now)
        return cell

    def last(self, name: str) -> bytes:
        """Give the cell that was read last; nothing when there was none."""
        return self._watches[name].cell or b""

    def seconds_unchanged(self, name: str) -> float:
        """Give for how long the cell that was read last has been seen unchanged."""
        watch = self._watches[name]
        return watch.until - watch.since


def digest_of(cell: bytes) -> str:
    """Give what a store keeps beside the time at which it wrote a cell, to know that the time is that of this cell.

    Version 0.1.0 wrote cells without the time, also over one that has it.
    """
    return hashlib.sha256(cell).hexdigest()[:32]
