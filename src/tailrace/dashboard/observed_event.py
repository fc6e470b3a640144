"""An event as a source observed it, on its way to the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.dashboard.answers import EventLine
from tailrace.raw.cluster_time import ClusterTime

_OVERHEAD = 1_000
"""Bytes that an event takes beside its value, about."""


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """An event as it was met in a topic or a change stream."""

    line: EventLine
    cluster_time: ClusterTime
    """Seconds in the upper 32 bits."""
    resolution: float
    """How exact `line.at` is, in seconds."""
    arrived_at: float | None
    """When it was written to the topic."""
    token: str
    value: bytes
    source: str
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return len(self.value) + len(self.line.summary) + _OVERHEAD
