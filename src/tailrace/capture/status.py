"""What a producer is doing now, as plain values: for its log, the monitor and `tailrace produce --json`."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from bson.timestamp import Timestamp

from tailrace.capture.positions import Position
from tailrace.monitor import Consumer, Liveness, Observation, State, liveness_of

_OBSERVATIONS_KEPT = 60
_SECONDS_BETWEEN_OBSERVATIONS = 1.0


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """How far a snapshot is."""

    chunks: int
    chunks_done: int
    documents: int
    documents_read: int
    seconds: float

    @property
    def rate(self) -> float:
        """Documents per second."""
        return self.documents_read / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long it will still take at this rate."""
        left = max(0, self.documents - self.documents_read)
        return left / self.rate if self.rate else None


class ProducerStatus:
    """Written by the producer's thread, read by any."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._position: Position | None = None
        self._operation_time: Timestamp | None = None
        self._recovering = False
        self._events = 0
        self._saved_at: float | None = None
        self._observations: deque[Observation] = deque(maxlen=_OBSERVATIONS_KEPT)
        self.snapshot: SnapshotStatus | None = None
        self.buffered = 0

    def moved(self, position: Position, events: int) -> None:
        """Note a position that was saved."""
        with self._lock:
            if self._position is None or position.token != self._position.token:
                self._saved_at = time.time()
            self._position, self._events = position, events

    def seen(self, operation_time: Timestamp | None) -> None:
        """Note the server's operation time."""
        if operation_time is not None:
            with self._lock:
                self._operation_time = operation_time
                self._observe()

    def recovering(self, recovering: bool) -> None:
        """Note that a recovery began or ended."""
        with self._lock:
            self._recovering = recovering

    def liveness(self) -> Liveness:
        """Give the state, with the proof."""
        with self._lock:
            if self._recovering:
                return Liveness(State.RECOVERING, "a snapshot is closing a gap in the history")
            if not self._observations:
                return Liveness(State.IDLE, "nothing was read yet")
            return liveness_of(tuple(self._observations))

    def consumer(self) -> Consumer | None:
        """Give the stream as the monitor wants to see it; None before the first position."""
        with self._lock:
            if self._position is None:
                return None
            return Consumer(
                self.stream,
                self._position.cluster_time,
                events=self._events,
                saved_at=self._saved_at,
                recovering=self._recovering,
            )

    @property
    def position(self) -> Position | None:
        """The last position that was saved."""
        return self._position

    @property
    def events(self) -> int:
        """How many events were ever delivered under this name."""
        return self._events

    def _observe(self) -> None:
        now = time.time()
        if self._position is None or self._operation_time is None:
            return
        if self._observations and now - self._observations[-1].at < _SECONDS_BETWEEN_OBSERVATIONS:
            return
        position = self._position.cluster_time
        self._observations.append(Observation(now, position, self._operation_time, self._events, self._saved_at))
