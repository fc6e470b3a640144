"""Every number tailrace gives to Prometheus, in one registry.

A stream takes a `StreamMetrics` of its own name and calls its methods; nothing else touches the metric objects, so
that a label can be neither forgotten nor swapped. `docs/metrics.md` lists all of them, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from tailrace.errors import EventTooLarge, EventUnconvertible, RecordRefused
from tailrace.monitor.liveness import State

if TYPE_CHECKING:
    from bson import Timestamp

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

_CAUSES_OF_DEAD_LETTERS = (RecordRefused.code, EventUnconvertible.code, EventTooLarge.code)
_STREAM = ("stream",)
_STREAM_AND_SHARD = ("stream", "shard")
_counter = partial(Counter, registry=REGISTRY)
_gauge = partial(Gauge, registry=REGISTRY)

# What a stream did.
_events = _counter("tailrace_events", "Events the sink has acknowledged.", ("stream", "op", "namespace"))
_bytes = _counter("tailrace_bytes", "Bytes of those events, as they were sent.", _STREAM)
_batches = _counter("tailrace_batches", "Batches whose position was committed, empty ones too.", _STREAM)
_commit_seconds = Histogram(
    "tailrace_commit_seconds",
    "Time from the last read of a batch to its committed position.",
    _STREAM,
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
_errors = _counter("tailrace_errors", "Errors met, by their stable code.", ("stream", "code"))
_dead_letters = _counter(
    "tailrace_dead_letters", "Events dead-lettered because the sink refused them.", ("stream", "cause")
)
_gaps = _counter("tailrace_gaps", "Gaps in the history, written to the ledger before recovery began.", _STREAM)

# How a stream is.
_state = _gauge("tailrace_state", "1 for the state the stream is in, 0 for the others.", ("stream", "state"))
_position_time = _gauge("tailrace_position_timestamp_seconds", "Cluster time of the committed position.", _STREAM)
_heartbeat = _gauge(
    "tailrace_heartbeat_seconds", "Time from the write of the last heartbeat to its return through the stream.", _STREAM
)
_buffer_bytes = _gauge("tailrace_buffer_bytes", "Bytes read and not yet acknowledged.", _STREAM)
_buffer_limit = _gauge("tailrace_buffer_limit_bytes", "The most bytes the stream may hold at once.", _STREAM)

# How long the history lasts.
_window = _gauge("tailrace_oplog_window_seconds", "Time between the first and the last oplog entry.", ("shard",))
_member_window = _gauge(
    "tailrace_member_oplog_window_seconds",
    "The same for each member that can be read; a stream may read from another one after a failover.",
    ("shard", "member"),
)
_oplog_used = _gauge("tailrace_oplog_used_bytes", "Bytes of entries in the oplog.", ("shard",))
_oplog_limit = _gauge("tailrace_oplog_limit_bytes", "Size at which the oplog drops its oldest entries.", ("shard",))
_age = _gauge("tailrace_position_age_seconds", "Time between the position and the last oplog entry.", _STREAM_AND_SHARD)
_headroom = _gauge(
    "tailrace_headroom_ratio",
    "Share of the oplog's capacity left before the position drops out of it: 1 at its end, 0 when lost.",
    _STREAM_AND_SHARD,
)
_until_lost = _gauge(
    "tailrace_seconds_until_history_lost",
    "Forecast from the trends of the oplog and of the consumer; +Inf when the position is not losing ground.",
    _STREAM_AND_SHARD,
)

# What a gateway serves.
_LISTENER = ("listener",)
_SHARD = ("shard",)
_gateway_connections = _gauge("tailrace_gateway_connections", "Clients that are connected.", _LISTENER)
_gateway_dropped = _counter(
    "tailrace_gateway_dropped", "Clients dropped because of what they sent, or did not send.", _LISTENER
)
_gateway_refused = _counter("tailrace_gateway_refused", "Connections, logins and streams over a limit.", _LISTENER)
_gateway_delayed = _counter(
    "tailrace_gateway_delayed",
    "Messages that waited for those of others, because of what their sender sends.",
    _LISTENER,
)
_gateway_failed_logins = _counter("tailrace_gateway_failed_logins", "Logins that the upstream refused.", _LISTENER)
_gateway_failed = _counter(
    "tailrace_gateway_failed_commands", "Commands that failed by a defect of the gateway.", _LISTENER
)
_gateway_commands = _counter("tailrace_gateway_commands", "Commands of clients.", _LISTENER)
_gateway_passed = _counter("tailrace_gateway_passed", "Commands that went on to the upstream.", _LISTENER)
_gateway_left = _counter(
    "tailrace_gateway_streams_left_to_upstream",
    "Change streams that the upstream serves itself: the engine does not know a stage or an option of theirs.",
    _LISTENER,
)
_gateway_events = _counter("tailrace_gateway_events", "Events sent to clients.", _LISTENER)
_gateway_bytes = _counter("tailrace_gateway_bytes", "Bytes of those events.", _LISTENER)
_hub_entries = _counter("tailrace_hub_entries", "Oplog entries read.", _SHARD)
_hub_bytes = _counter("tailrace_hub_bytes", "Bytes of those entries.", _SHARD)
_hub_scans = _counter("tailrace_hub_scans", "Scans of their own that subscribers made to catch up.", _SHARD)
_hub_subscribers = _gauge("tailrace_hub_subscribers", "Open change streams.", _SHARD)
_hub_channels = _gauge(
    "tailrace_hub_channels",
    "Different change streams among them: what is made once for all that ask for the same.",
    _SHARD,
)
_hub_ring = _gauge("tailrace_hub_ring_bytes", "Newest oplog entries buffered for subscribers.", _SHARD)
_hub_cursors = _gauge("tailrace_hub_upstream_cursors", "Cursors on the upstream's oplog.", _SHARD)
_hub_lag = _gauge(
    "tailrace_hub_lag_seconds",
    "Time between the oplog's end and the slowest subscriber of a namespace.",
    ("shard", "namespace"),
)
_merge_blocked = _gauge(
    "tailrace_merge_blocked_seconds", "For how long the streams of other shards have waited for this one.", _SHARD
)
_merge_held = _gauge(
    "tailrace_merge_held_seconds", "Deprecated, and gone in the next release: tailrace_merge_blocked_seconds.", _SHARD
)
_shard_stalled = _gauge(
    "tailrace_shard_stalled_seconds",
    "For how long a shard that others wait for has not answered; 0 when it does.",
    _SHARD,
)

# What the engine has proved.
_engine_compared = _counter(
    "tailrace_engine_compared",
    "Events of the engine's that were compared with the server's own.",
    ("stream", "kind", "result"),
)
_engine_kinds = _gauge(
    "tailrace_engine_kinds",
    "Kinds of events by what is believed of them: trusted, unproved, distrusted.",
    ("stream", "trust"),
)
_engine_serves = _gauge(
    "tailrace_engine_serves",
    "1 while events come from the engine, 0 while they come from the server's own stream.",
    _STREAM,
)

# What a dashboard shows, to whom.
_dashboard_clients = _gauge("tailrace_dashboard_clients", "Browsers that follow the dashboard.", _LISTENER)
_dashboard_dropped = _counter(
    "tailrace_dashboard_dropped", "Browsers dropped because they did not take what was sent.", _LISTENER
)
_dashboard_source_up = _gauge(
    "tailrace_dashboard_source_up", "1 when the dashboard's last look at a source succeeded, else 0.", ("source",)
)


class StreamMetrics:
    """The metrics of one stream, by the name it has in the position store.

    Its counters exist from the start (at 0), so that `rate()` in an alert rule sees their first step; its gauges
    only appear with their first value.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self._bytes = _bytes.labels(stream)
        self._batches = _batches.labels(stream)
        self._commit_seconds = _commit_seconds.labels(stream)
        self._gaps = _gaps.labels(stream)
        for cause in _CAUSES_OF_DEAD_LETTERS:
            _dead_letters.labels(stream, cause)

    def events(self, op: str, namespace: str, count: int = 1) -> None:
        """Count events the sink has acknowledged; call it once per batch, operation type and namespace."""
        _events.labels(self.stream, op, namespace).inc(count)

    def batch(self, events: Mapping[tuple[str, str], int], size: int, commit_seconds: float | None = None) -> None:
        """Count a committed batch: events by (op, namespace), their bytes, and how long the commit took."""
        for (op, namespace), count in events.items():
            self.events(op, namespace, count)
        self._bytes.inc(size)
        self._batches.inc()
        if commit_seconds is not None:
            self._commit_seconds.observe(commit_seconds)

    def error(self, code: str) -> None:
        """Count an error by `TailraceError.code`, or by `unexpected`."""
        _errors.labels(self.stream, code).inc()

    def dead_letter(self, cause: str) -> None:
        """Count an event that was dead-lettered; `cause` is an error code, never text from the event."""
        _dead_letters.labels(self.stream, cause).inc()

    def gap(self) -> None:
        """Count a gap that went into the ledger."""
        self._gaps.inc()

    def state(self, state: State) -> None:
        """Show the state the stream is in now."""
        show_state(self.stream, state)

    def position(self, cluster_time: Timestamp) -> None:
        """Show the cluster time of the position that was just committed."""
        _position_time.labels(self.stream).set(cluster_time.time)

    def heartbeat(self, seconds: float) -> None:
        """Show how long a mark in the source took to come back."""
        _heartbeat.labels(self.stream).set(seconds)

    def buffer(self, used: int, limit: int) -> None:
        """Show how full the stream's buffer is, in bytes."""
        _buffer_bytes.labels(self.stream).set(used)
        _buffer_limit.labels(self.stream).set(limit)


# What is known of a stream from outside, by its position alone: a process that only watches it counts nothing for it,
# and counters that stand still would look like a stream that does.


def show_lag(stream: str, shard: str, *, age: float, headroom: float, until_lost: float | None) -> None:
    """Show where a position stands in one shard's oplog; `until_lost` is None when it is not losing ground."""
    _age.labels(stream, shard).set(age)
    _headroom.labels(stream, shard).set(headroom)
    _until_lost.labels(stream, shard).set(math.inf if until_lost is None else until_lost)


def show_state(stream: str, state: State) -> None:
    """Show the state a stream is in now."""
    for each in State:
        _state.labels(stream, each.value).set(each is state)


def show_oplog(shard: str, *, window: float, used_bytes: int, limit_bytes: int) -> None:
    """Show how much history one shard holds."""
    _window.labels(shard).set(window)
    _oplog_used.labels(shard).set(used_bytes)
    _oplog_limit.labels(shard).set(limit_bytes)


def show_members(shard: str, windows: Mapping[str, float]) -> None:
    """Show how much history each member of a shard holds."""
    for member, window in windows.items():
        _member_window.labels(shard, member).set(window)


class GatewayMetrics:
    """The metrics of one gateway; it is given totals, and counts what is new in them."""

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self._totals: dict[tuple[Counter, str], float] = {}

    def show_gateway(
        self, *, connections: int, dropped: int, refused: int, delayed: int, failed_logins: int, failed: int,
        commands: int, passed: int, left_to_upstream: int, events: int, size: int,
    ) -> None:  # fmt: skip
        """Show what the gateway has done since it began."""
        _gateway_connections.labels(self.listener).set(connections)
        for counter, total in (
            (_gateway_dropped, dropped), (_gateway_refused, refused), (_gateway_delayed, delayed),
            (_gateway_failed_logins, failed_logins), (_gateway_failed, failed),
            (_gateway_commands, commands), (_gateway_passed, passed),
            (_gateway_left, left_to_upstream), (_gateway_events, events), (_gateway_bytes, size),
        ):  # fmt: skip
            self._count(counter, self.listener, total)

    def show_hub(
        self, shard: str, *, entries: int, size: int, scans: int, subscribers: int, channels: int, ring: int,
        cursors: int,
    ) -> None:  # fmt: skip
        """Show what the hub of a shard has done."""
        for counter, total in ((_hub_entries, entries), (_hub_bytes, size), (_hub_scans, scans)):
            self._count(counter, shard, total)
        _hub_subscribers.labels(shard).set(subscribers)
        _hub_channels.labels(shard).set(channels)
        _hub_ring.labels(shard).set(ring)
        _hub_cursors.labels(shard).set(cursors)

    @staticmethod
    def show_lags(lags: Mapping[tuple[str, str], float]) -> None:
        """Show, by shard and namespace, how far behind the slowest subscriber is."""
        _hub_lag.clear()
        for (shard, namespace), lag in lags.items():
            _hub_lag.labels(shard, namespace).set(lag)

    @staticmethod
    def show_merge(blocking_seconds: Mapping[str, float], stalled: Mapping[str, float]) -> None:
        """Show, by shard, for how long others have waited for it, and for how long it has not answered."""
        for shard, seconds in blocking_seconds.items():
            _merge_blocked.labels(shard).set(seconds)
            _merge_held.labels(shard).set(seconds)
            _shard_stalled.labels(shard).set(stalled.get(shard, 0.0))

    def _count(self, counter: Counter, label: str, total: float) -> None:
        counter.labels(label).inc(total - self._totals.get((counter, label), 0))
        self._totals[counter, label] = total


class ProofMetrics:
    """What is known of the engine on one stream; a gateway is one by its listener."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._counted: dict[tuple[str, str], int] = {}

    def show(self, compared: Mapping[tuple[str, str], int], kinds: Mapping[str, int]) -> None:
        """Show what was compared so far, by kind and result, and how many kinds are believed."""
        for (kind, result), total in compared.items():
            before = self._counted.get((kind, result), 0)
            _engine_compared.labels(self._stream, kind, result).inc(max(0, total - before))
            self._counted[kind, result] = total
        for trust, count in kinds.items():
            _engine_kinds.labels(self._stream, trust).set(count)

    def serves(self, is_engine: bool) -> None:
        """Show where events come from."""
        _engine_serves.labels(self._stream).set(is_engine)


class DashboardMetrics:
    """The metrics of one dashboard, by the address and port where it listens."""

    def __init__(self, listener: str) -> None:
        self._clients = _dashboard_clients.labels(listener)
        self._dropped = _dashboard_dropped.labels(listener)

    def clients(self, count: int) -> None:
        """Show how many browsers follow it."""
        self._clients.set(count)

    def dropped(self) -> None:
        """Count a browser that was dropped."""
        self._dropped.inc()

    @staticmethod
    def source(name: str, *, is_up: bool) -> None:
        """Show whether the last look at a source succeeded."""
        _dashboard_source_up.labels(name).set(is_up)
