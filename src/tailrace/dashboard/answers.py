"""What is asked for by itself: the history of the charts, live events, an entity's features, actions and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import masked


@dataclass(frozen=True, slots=True)
class History:
    """The charts' series; all have as many values as there are moments."""

    span: str
    step_seconds: float
    at: list[float]
    series: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class EventLine:
    """A live event in one line."""

    number: int
    """Counts the events this dashboard has observed."""
    at: float
    """When it happened, as exactly as the server says."""
    observed_at: float
    operation: str
    namespace: str
    key: str
    summary: str
    cluster_time: str
    """`seconds,increment`."""
    bytes: int


@dataclass(frozen=True, slots=True)
class EventDetail:
    """A live event in full, with its decoded token."""

    line: EventLine
    source: str
    """Where it was read: a topic with partition and offset, or the change stream."""
    token: str
    token_parts: dict[str, Any]
    headers: dict[str, str]
    event: Any
    """The value as it lies in the topic, as Extended JSON."""
    is_cut: bool
    """Whether the value was too large to be held; `event` is then its beginning, as text."""


@dataclass(frozen=True, slots=True)
class EntityFeatures:
    """The features of one entity at the moment of reading."""

    name: str
    entity: str
    at: float
    values: dict[str, Any]
    as_of: float | None
    updated_at: float | None
    freshness_seconds: float | None
    position: str | None


@dataclass(frozen=True, slots=True)
class ActionAnswer:
    """What a producer answered to an action."""

    action: str
    producer: str
    answer: dict[str, Any]
    confirmation: str | None = None
    """After a dry run of a recovery: what the real one has to show, within ten minutes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error, in the form that all errors of tailrace have."""

    code: str
    message: str
    hint: str


def shown_folder(folder: str) -> str:
    """Give a folder's path from here when it lies below, and as it is set otherwise; a URL without its password."""
    path, here = Path(folder.removeprefix("file://")), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else masked(folder)


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
