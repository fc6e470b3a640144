"""How a producer behaves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.capture.snapshot.chunk import CHUNK_BYTES
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
    """How far reading may run ahead of delivery."""
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
