"""A limit on how many documents per second a snapshot reads, over all its workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Throttle:
    """Hands out turns so that the average stays at the limit; 0 means no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._free_at = clock()
        self._lock = threading.Lock()

    def debt(self, documents: int) -> float:
        """Note that so many documents were read; give the seconds to wait before more are."""
        if self._per_second <= 0:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, self._clock()) + documents / self._per_second
            return max(0.0, self._free_at - self._clock())
