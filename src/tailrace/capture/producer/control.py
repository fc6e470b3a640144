"""How a producer behaves, and what is asked of it while it runs: to stop, to pause, or to take a step first."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum

from tailrace.capture.snapshot.chunk import CHUNK_BYTES
from tailrace.errors import ControlRefused
from tailrace.policy import NO_POLICY, Policy
from tailrace.retry import DEFAULT_POLICY, RetryPolicy
from tailrace.telemetry import NO_TRACING, Tracing


class FirstStep(StrEnum):
    """What is done once, before the stream goes on."""

    GO_ON = "go on"
    SNAPSHOT = "a snapshot was asked for"
    RECOVER = "a recovery was asked for"
    START_NOW = "a start from now was asked for"


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer behaves."""

    name: str
    start: str = "snapshot"
    """Where a stream without a position begins: `snapshot`, or `now` for those who want no history."""
    recover: bool = True
    """Whether lost history is recovered at once; otherwise the producer stops with the gap in the ledger."""
    buffer_bytes: int = 32 * 1024 * 1024
    """Size of the read-ahead buffer."""
    commit_interval: float = 0.1
    lease_seconds: float = 30.0
    heartbeat_seconds: float = 0.0
    """Time between two marks in the source, when the selection names a collection for them."""
    lease_timeout: float = float("inf")
    flush_timeout: float = 30.0
    snapshot_workers: int = 2
    snapshot_documents_per_second: float = 0
    chunk_bytes: int = CHUNK_BYTES
    first_step: FirstStep = FirstStep.GO_ON
    """What a person asked for by name before the stream goes on."""
    stop_when_idle: bool = False
    """Stop when everything up to the moment of the start was delivered, instead of following the stream."""
    backoff: RetryPolicy = DEFAULT_POLICY
    policy: Policy = NO_POLICY
    """What happens to fields before they leave the process; keys that were captured are compared under it."""
    tracing: Tracing = NO_TRACING
    """Which events have traces, and where their spans go."""


class Stopped(Exception):
    """The producer was asked to stop or to pause while it waited."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that a person asked for by name; `collections` narrows a snapshot, none are all."""

    kind: FirstStep = FirstStep.GO_ON
    collections: tuple[str, ...] = ()


_GO_ON = Step()


class Controls:
    """Asked from any thread or signal handler, obeyed by the producer's thread between two batches.

    A pause lasts as long as the process does: a restart is a way to go on.
    """

    def __init__(self, step: FirstStep = FirstStep.GO_ON) -> None:
        self._lock = threading.Lock()
        self.step = Step(step)
        """What is to be done before the stream goes on."""
        self._paused = threading.Event()
        self._stopping = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether the producer is to end."""
        return self._stopping.is_set()

    @property
    def paused(self) -> bool:
        """Whether nothing is to be read for now."""
        return self._paused.is_set()

    @property
    def interrupts(self) -> bool:
        """Whether an attempt that follows the stream should end what it does."""
        return self._stopping.is_set() or self._paused.is_set() or self.step != _GO_ON

    def stop(self) -> None:
        """Ask for the end."""
        self._stopping.set()

    def pause(self) -> None:
        """Ask that nothing is read any more."""
        self._paused.set()

    def resume(self) -> None:
        """Ask that reading goes on."""
        self._paused.clear()

    def ask(self, step: Step) -> None:
        """Ask for a step; there is one at a time."""
        with self._lock:
            if self.step != _GO_ON:
                raise ControlRefused(f"{self.step.kind.value} and has not begun yet", status=409)
            self.step = step

    def taken(self, step: Step) -> None:
        """Note that a step is begun, in a way that a restart goes on with."""
        with self._lock:
            if self.step is step:
                self.step = _GO_ON

    def wait(self, seconds: float) -> None:
        """Wait, unless asked to stop meanwhile."""
        if self._stopping.wait(seconds):
            raise Stopped
