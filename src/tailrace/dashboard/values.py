"""What the dashboard knows at one moment, as plain values: the page and the JSON API show exactly this.

The OpenAPI description is made of these classes and those of `answers.py`, so a field that is added here is documented
there. Every moment is in Unix seconds, every duration in seconds, every size in bytes; None means that it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Colour(StrEnum):
    """How something is, at a glance."""

    GREEN = "green"
    AMBER = "amber"
    RED = "red"
    GREY = "grey"
    """It is not there, or nobody asked for it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A colour, and the sentence that gives the reason for it."""

    colour: Colour
    reason: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A number or word in a box, with its name."""

    label: str
    value: str


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the pipeline."""

    id: str
    title: str
    location: str
    """Where it is: an address without secrets."""
    condition: Condition
    facts: list[Fact] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Arrow:
    """What flows from one box to another."""

    source: str
    target: str
    events_per_second: float | None
    latency_seconds: float | None
    """The median of this hop over the last minutes."""
    hop: str
    """What the latency is measured of."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The picture of the pipeline."""

    boxes: list[Box]
    arrows: list[Arrow]


@dataclass(frozen=True, slots=True)
class Marker:
    """A consumer's position in an oplog."""

    name: str
    kind: str
    """stream, job or watcher: only streams lose their location when history is lost."""
    at: float
    ratio: float
    """Where it stands in the bar: the headroom it has, 1 at the end of the oplog, 0 where history is lost."""
    age_seconds: float
    level: str
    """ok, warning or critical."""
    is_lost: bool
    reasons: list[str] = field(default_factory=list)
    until_lost_seconds: float | None = None
    """Forecast from the trends; None when it is not losing ground."""
    until_lost_if_stopped_seconds: float | None = None
    until_caught_up_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class OplogWindow:
    """The history that one shard holds, and who stands where in it."""

    shard: str
    first: float
    last: float
    window_seconds: float
    used_bytes: int
    limit_bytes: int
    is_full: bool
    free_ratio: float
    """The share of the bar that no entry fills yet."""
    half_ratio: float
    """Where the warning begins: left of it more than half of the capacity lies after a position."""
    critical_ratio: float
    markers: list[Marker]


@dataclass(frozen=True, slots=True)
class ShardMark:
    """How far one stream has come on one shard."""

    stream: str
    at: float
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: the end of its oplog, the high-water marks on it, and whether others wait for it."""

    name: str
    last: float | None
    marks: list[ShardMark]
    blocks_merge: bool
    blocking_seconds: float
    """For how long the streams of other shards have waited for this one."""
    stalled_seconds: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A capture: what its producer says, and what the position store says of it."""

    name: str
    producer: str | None
    """The endpoint of its producer, without secrets; None when no producer of this name answers."""
    condition: Condition
    state: str
    proof: str
    cluster_time: float | None
    position_age_seconds: float | None
    headroom_ratio: float | None
    seconds_until_history_lost: float | None
    events: int
    bytes: int
    batches: int
    dead_letters: int
    events_per_second: float
    bytes_per_second: float
    buffer_bytes: float | None
    buffer_limit_bytes: float | None
    source: str | None
    delivery: str | None
    format: str | None
    sink: str | None
    writer: str | None
    started_at: float | None
    saved_at: float | None
    token: str | None
    errors: dict[str, int] = field(default_factory=dict)
    recovery: dict[str, Any] | None = None
    snapshot: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WatcherLag:
    """The slowest watcher of a namespace on a shard."""

    shard: str
    namespace: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HubShard:
    """What a gateway reads of one shard, for how many."""

    shard: str
    watchers: int
    channels: int
    """Different change streams among the watchers."""
    cursors: int
    """Cursors on the upstream's oplog."""
    entries_per_second: float
    ring_bytes: float


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway and its watchers."""

    location: str
    condition: Condition
    listener: str | None
    connections: int
    watchers: int
    events_per_second: float
    bytes_per_second: float
    dropped: int
    passed: int
    shards: list[HubShard]
    lags: list[WatcherLag]


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """A features job, as Redis shows it."""

    name: str
    namespace: str
    entity: str
    features: list[str]
    batch: int | None
    as_of: float | None
    """Cluster time of the newest event in the features."""
    updated_at: float | None
    latency_seconds: float | None
    condition: Condition


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One commit of a table."""

    id: str
    """A number of 64 bits, as text: a browser would round it."""
    at: float
    operation: str
    added_rows: int | None
    deleted_rows: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """An Iceberg table with its newest snapshots, the newest first."""

    name: str
    kind: str
    rows: int | None
    files: int | None
    bytes: int | None
    columns: list[str]
    snapshot_count: int
    snapshots: list[TableSnapshot]
    cluster_time: float | None
    """Cluster time of the newest event in it."""
    latency_seconds: float | None


@dataclass(frozen=True, slots=True)
class Drift:
    """A change of schema that was met on the way into a table."""

    table: str
    at: float | None
    change: str


@dataclass(frozen=True, slots=True)
class GapEntry:
    """A gap of the ledger."""

    stream: str
    number: int
    state: str
    reason: str
    is_open: bool
    last_good: float | None
    first_known: float | None
    found_at: float
    closed_at: float | None
    records: int
    deletes: int
    notes: list[str]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: an event that could not be delivered."""

    at: float | None
    cause: str
    message: str
    namespace: str
    operation: str
    token: str
    bytes: int


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """How many dead letters a part of the pipeline has, and the newest."""

    part: str
    """capture, features or warehouse."""
    location: str
    total: int | None
    """None where they are kept in a location that the dashboard does not poll."""
    newest: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class Latency:
    """How long one hop took over the last five minutes."""

    hop: str
    title: str
    is_end_to_end: bool
    p50: float
    p95: float
    p99: float
    count: int
    resolution_seconds: float
    """How exact a single measurement is: servers before 6.0 tell the time of an event in whole seconds."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Something that the dashboard polls, and how the last poll went."""

    name: str
    condition: Condition
    at: float | None
    took_seconds: float | None


@dataclass(frozen=True, slots=True)
class Actions:
    """Whether actions are possible here."""

    enabled: bool
    reason: str


@dataclass(frozen=True, slots=True)
class State:
    """Everything at one moment."""

    at: float
    version: str
    overall: Condition
    flow: Flow
    oplog: list[OplogWindow]
    streams: list[Stream]
    shards: list[Shard]
    gateways: list[Gateway]
    features: list[FeatureSet]
    tables: list[Table]
    drift: list[Drift]
    gaps: list[GapEntry]
    dead_letters: list[DeadLetters]
    latency: list[Latency]
    sources: list[SourceStatus]
    actions: Actions
    points: dict[str, float]
    """The newest point of every series of the charts."""
