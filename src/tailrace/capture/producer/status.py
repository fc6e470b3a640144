"""What a producer is doing now, as plain values: for its log, the monitor and `tailrace produce --json`."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from bson.timestamp import Timestamp

from tailrace.capture.positions import Counts, Position
from tailrace.capture.producer.heartbeat import Heartbeat
from tailrace.monitor import PAUSED, Consumer, LagLimits, Liveness, Observation, State, liveness_of

_OBSERVATIONS_KEPT = 60
_SECONDS_BETWEEN_OBSERVATIONS = 1.0
SPARE = "another process holds the lease of the stream; this one waits for it"


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """How far a snapshot is."""

    chunks: int
    chunks_done: int
    documents: int
    documents_read: int
    seconds: float
    reason: str = ""
    gap: int | None = None
    """The gap in the ledger that it closes."""
    finished: bool = False

    @property
    def rate(self) -> float:
        """Documents per second."""
        return self.documents_read / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long it will still take at this rate."""
        left = max(0, self.documents - self.documents_read)
        return left / self.rate if self.rate else None


@dataclass(frozen=True, slots=True)
class Loss:
    """History that was lost."""

    gap: int
    """Its number in the ledger."""
    turn: int
    """How often history was lost before the gap was closed."""
    pause: float
    """Seconds before the recovery begins."""


class ProducerStatus:
    """Written by the producer's thread, read by any."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._position: Position | None = None
        self._operation_time: Timestamp | None = None
        self._recovering = False
        self.loss: Loss | None = None
        """The loss that is being recovered from, if this process has met it."""
        self._paused = False
        self.is_standby = False
        """Whether another process runs the stream, and this one waits for its lease."""
        self._sink_problem: str | None = None
        self.counts = Counts()
        """What was ever delivered under this name."""
        self._errors: Counter[str] = Counter()
        self._beat = time.monotonic()
        self._heard = time.monotonic()
        self.lag_limits = LagLimits()
        self._saved_at: float | None = None
        self._moved: float | None = None
        """When the position moved, on the clock of the observations, which nobody sets."""
        self._observations: deque[Observation] = deque(maxlen=_OBSERVATIONS_KEPT)
        self.started_at = time.time()
        self.snapshot: SnapshotStatus | None = None
        self.buffered = 0
        self.heartbeat: Heartbeat | None = None

    def moved(self, position: Position, counts: Counts) -> None:
        """Note a position that was saved."""
        with self._lock:
            if self._position is None or position.token != self._position.token:
                self._saved_at, self._moved = time.time(), time.monotonic()
                self._sink_problem = None
            self._position, self.counts = position, counts

    def observed(self, operation_time: Timestamp | None) -> None:
        """Note the server's operation time."""
        if operation_time is not None:
            with self._lock:
                self._heard = time.monotonic()
                self._operation_time = operation_time
                self._observe()

    def recovering(self, recovering: bool) -> None:
        """Note that a recovery began or ended."""
        with self._lock:
            self._recovering = recovering
            if not recovering:
                self.loss = None

    def lost(self, gap: int, turn: int, pause: float) -> None:
        """Note that history was lost; `turn` counts the losses of this gap, before it was closed."""
        with self._lock:
            self._recovering, self.loss = True, Loss(gap, turn, pause)

    def paused(self, paused: bool) -> None:
        """Note that a pause began or ended."""
        with self._lock:
            self._paused = paused
            self._heard = time.monotonic()

    def waits_for_lease(self) -> None:
        """Note that this process is a standby: it does nothing before the lease is free."""
        self.beat()
        with self._lock:
            self.is_standby = True

    def elected(self) -> None:
        """Note that the stream is this process's own now."""
        with self._lock:
            self.is_standby = False

    def delivery_waits(self, reason: str) -> None:
        """Note why nothing is delivered, and reading waits, until the position moves again."""
        with self._lock:
            self._sink_problem = f"nothing is delivered: {reason}"

    def error(self, code: str) -> None:
        """Count an error by its code."""
        with self._lock:
            self._errors[code] += 1

    def beat(self) -> None:
        """Note that the producer's thread has run one iteration."""
        self._beat = time.monotonic()

    @property
    def seconds_since_beat(self) -> float:
        """Seconds since the producer's thread last completed an iteration."""
        return time.monotonic() - self._beat

    def liveness(self) -> Liveness:
        """Give the state, with the proof."""
        with self._lock:
            if self.is_standby:
                return Liveness(State.IDLE, SPARE)
            if self._paused:
                return Liveness(State.PAUSED, PAUSED)
            if self._recovering:
                return Liveness(State.RECOVERING, self._recovery_proof())
            if not self._observations:
                return Liveness(State.IDLE, "nothing was read yet")
            found = liveness_of(tuple(self._observations), self.lag_limits)
            return self._without_answers(found) or self._by_heartbeat(found)

    def consumer(self) -> Consumer | None:
        """Give the stream as the monitor wants to see it; None before the first position."""
        with self._lock:
            if self._position is None:
                return None
            return Consumer(
                self.stream,
                self._position.cluster_time,
                events=self.counts.events,
                saved_at=self._saved_at,
                recovering=self._recovering,
                paused=self._paused,
                sink_problem=self._sink_problem,
            )

    @property
    def position(self) -> Position | None:
        """The last position that was saved."""
        return self._position

    @property
    def events(self) -> int:
        """How many events were ever delivered under this name."""
        return self.counts.events

    def errors(self) -> dict[str, int]:
        """Give how often each error was met in this process, by code."""
        with self._lock:
            return dict(self._errors)

    def _recovery_proof(self) -> str:
        proof = "a snapshot is closing a gap in the history"
        if self.loss is None or self.loss.turn == 1:
            return proof
        return f"{proof}, turn {self.loss.turn}: history was lost again before it was closed"

    def _without_answers(self, found: Liveness) -> Liveness | None:
        """Judge by the silence: old observations, however good they were, prove nothing about now.

        A stream takes an answer of the server every second, also of an idle one.
        """
        seconds = time.monotonic() - self._heard
        if self._sink_problem is not None and seconds >= self.lag_limits.behind_seconds:
            return Liveness(State.BEHIND, f"{self._sink_problem}; for {seconds:,.0f} s nothing was read")
        proof = f"nothing was taken from the server for {seconds:,.0f} s; before, {found.proof}"
        if seconds >= self.lag_limits.stalled_seconds:
            return Liveness(State.STALLED, proof)
        return Liveness(State.BEHIND, proof) if seconds >= self.lag_limits.behind_seconds else None

    def _by_heartbeat(self, found: Liveness) -> Liveness:
        """Judge by the marks in the source: one that the position has passed, and that never came, was lost."""
        heartbeat, position = self.heartbeat, self._position
        if heartbeat is None or position is None:
            return found
        mark = heartbeat.lost(position.cluster_time)
        if mark is not None:
            proof = f"the stream has passed the time of heartbeat {mark.number} and did not give it"
            return Liveness(State.STALLED, proof)
        if not heartbeat.observed:
            return found
        return Liveness(found.state, f"{found.proof}; heartbeat {heartbeat.observed} came back")

    def _observe(self) -> None:
        now = time.monotonic()
        if self._position is None or self._operation_time is None:
            return
        if self._observations and now - self._observations[-1].at < _SECONDS_BETWEEN_OBSERVATIONS:
            return
        position = self._position.cluster_time
        self._observations.append(Observation(now, position, self._operation_time, self.counts.events, self._moved))
