"""What a producer's log says of its life: waiting, the lease, where the stream opens, and the position now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.capture.positions import Counts, Lease, Position
from tailrace.capture.source.source import Start
from tailrace.logs import get_logger

_log = get_logger("tailrace.capture")
_SECONDS_BETWEEN_POSITIONS = 60.0


class Journal:
    """One line for each step, never the same one again and again."""

    def __init__(self, stream: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._is_waiting = False
        self._next_position = 0.0

    def waits_for_lease(self) -> None:
        """Log that another process holds the lease, once."""
        if not self._is_waiting:
            self._is_waiting = True
            _log.info("waiting_for_lease", stream=self._stream)

    def elected(self, lease: Lease) -> None:
        """Log that this process owns the stream now."""
        what = "lease_taken_over" if self._is_waiting else "lease_taken"
        self._is_waiting = False
        _log.info(what, stream=self._stream, owner=lease.owner, epoch=lease.epoch, seconds=lease.seconds)

    def opened(self, start: Start) -> None:
        """Log where the stream begins, at the start and after each reconnect."""
        _log.info("stream_opened", stream=self._stream, start=str(start))
        self._next_position = self._clock() + _SECONDS_BETWEEN_POSITIONS

    def stands_at(self, position: Position, counts: Counts) -> None:
        """Log the committed position, once a minute."""
        if self._clock() < self._next_position:
            return
        self._next_position = self._clock() + _SECONDS_BETWEEN_POSITIONS
        time_ = position.cluster_time
        _log.info("position", stream=self._stream, cluster_time=f"{time_.time},{time_.inc}", events=counts.events)
