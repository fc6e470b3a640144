"""Streams, shards and oplog windows, put together from the oplogs, the position store and the producers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tailrace.dashboard.sources.metrics_text import Metrics, Rates
from tailrace.dashboard.sources.positions import StoredStream
from tailrace.dashboard.sources.producers import ProducerReading
from tailrace.dashboard.values import Colour, Condition, Marker, OplogWindow, Shard, ShardMark, Stream
from tailrace.dashboard.view import conditions
from tailrace.dashboard.view.observed import Observed
from tailrace.monitor import Oplog, Report, State, Thresholds
from tailrace.policy import NO_POLICY, Policy
from tailrace.settings import masked

STOPPED = "stopped"
"""A stream that has a position and no producer; a position that moved until just now would make it live."""


def streams_of(observed: Observed, rates: Rates, policy: Policy = NO_POLICY) -> list[Stream]:
    """Give every stream that a producer or the position store knows."""
    standbys_first = sorted(observed.answering, key=lambda reading: not reading.is_standby)
    reported = {str(reading.state.get("name", "")): reading for reading in standbys_first}
    stored = observed.stored
    by_stream: dict[str, list[Report]] = {name: [] for name in sorted(reported.keys() | stored.keys()) if name}
    for report in observed.reports:
        if report.stream in by_stream:
            by_stream[report.stream].append(report)
    return [
        _stream(name, reported.get(name), stored.get(name), reports, rates, observed, policy)
        for name, reports in by_stream.items()
    ]


def _stream(
    name: str,
    reported: ProducerReading | None,
    stored: StoredStream | None,
    reports: Sequence[Report],
    rates: Rates,
    observed: Observed,
    policy: Policy,
) -> Stream:
    now = observed.now
    state = reported.state if reported else {}
    metrics = reported.metrics if reported else Metrics()
    counts = stored.position.counts if stored else None
    word, proof = _state_of(state, stored, reports, is_mongodb_there=observed.oplog.is_good)
    age = max((report.lag.age_seconds for report in reports if report.lag), default=None)
    headroom = min((report.lag.headroom_ratio for report in reports if report.lag), default=None)
    lost = [r.lag.forecast.until_lost for r in reports if r.lag and r.lag.forecast.until_lost is not None]
    token = stored.position.token if stored else None
    return Stream(
        name=name,
        producer=reported.location if reported else None,
        condition=_condition(word, proof, reports),
        state=word,
        proof=proof,
        cluster_time=float(stored.position.cluster_time.time) if stored else moment_of(state.get("cluster_time")),
        position_age_seconds=age if age is not None else state.get("position_age_seconds"),
        headroom_ratio=headroom if headroom is not None else state.get("headroom_ratio"),
        seconds_until_history_lost=min(lost) if lost else None,
        events=max(int(state.get("events") or 0), counts.events if counts else 0),
        bytes=max(int(state.get("bytes") or 0), counts.bytes if counts else 0),
        batches=max(int(state.get("batches") or 0), counts.batches if counts else 0),
        dead_letters=max(int(state.get("dead_letters") or 0), counts.dead_letters if counts else 0),
        events_per_second=rates.per_second(("events", name), metrics.total("tailrace_events_total", stream=name), now),
        bytes_per_second=rates.per_second(("bytes", name), metrics.total("tailrace_bytes_total", stream=name), now),
        buffer_bytes=_gauge(metrics, "tailrace_buffer_bytes", name),
        buffer_limit_bytes=_gauge(metrics, "tailrace_buffer_limit_bytes", name),
        source=state.get("source"),
        delivery=state.get("delivery"),
        format=state.get("format"),
        sink=masked(str(state["sink"])) if state.get("sink") else None,
        writer=stored.writer if stored else None,
        started_at=moment_of(state.get("started_at")),
        saved_at=stored.position.saved_at.timestamp() if stored and stored.position.saved_at else None,
        token=policy.shown_token(token) if token else state.get("token"),
        errors={str(code): int(count) for code, count in (state.get("errors") or {}).items()},
        recovery=state.get("recovery"),
        snapshot=state.get("snapshot"),
    )


def _state_of(
    state: Mapping[str, Any], stored: StoredStream | None, reports: Sequence[Report], *, is_mongodb_there: bool
) -> tuple[str, str]:
    """Give the producer's own word for its state, or else what its lease and its position show."""
    if state.get("state"):
        return str(state["state"]), str(state.get("proof", ""))
    if stored is not None and stored.writer is None:
        return STOPPED, "nobody runs this stream: no producer holds its lease"
    judged = [report.liveness for report in reports if report.liveness]
    if not judged:
        return "unknown", "" if is_mongodb_there else "neither its producer nor MongoDB answers"
    order = ["idle", "live", "behind", "paused", "stalled", "recovering"]
    found = max(judged, key=lambda each: order.index(each.state.value) if each.state.value in order else 0)
    return found.state.value, found.proof


def _condition(word: str, proof: str, reports: Sequence[Report]) -> Condition:
    if word == "unknown":
        return Condition(Colour.RED, proof) if proof else Condition(Colour.GREY, "its position is being looked at")
    judged = conditions.of_state(word, proof, reports)
    is_stalled = any(report.liveness and report.liveness.state is State.STALLED for report in reports)
    return Condition(Colour.RED, judged.reason) if word == STOPPED and is_stalled else judged


def windows_of(
    observed: Observed, thresholds: Thresholds, jobs: Mapping[str, float], lags: Mapping[str, float]
) -> list[OplogWindow]:
    """Give every shard's oplog with all who stand in it.

    `jobs` are Spark jobs with the cluster time they have come to; `lags` is by shard how far behind the slowest
    watcher of a gateway is.
    """
    shards: dict[str, list[Report]] = {}
    for report in observed.reports:
        shards.setdefault(report.oplog.shard, []).append(report)
    windows = []
    for shard, reports in shards.items():
        oplog = reports[0].oplog
        markers = [marker for report in reports if (marker := _marker(report)) is not None]
        markers += [_bystander(oplog, name, "job", at) for name, at in sorted(jobs.items())]
        if shard in lags:
            markers.append(_bystander(oplog, "slowest watcher", "watcher", oplog.last.time - lags[shard]))
        windows.append(
            OplogWindow(
                shard=shard,
                first=float(oplog.first.time),
                last=float(oplog.last.time),
                window_seconds=oplog.window_seconds,
                used_bytes=oplog.used_bytes,
                limit_bytes=oplog.limit_bytes,
                is_full=oplog.full,
                free_ratio=max(0.0, 1 - oplog.used_bytes / oplog.capacity_bytes),
                half_ratio=1 - thresholds.warn_ratio,
                critical_ratio=1 - thresholds.critical_ratio,
                markers=markers,
            )
        )
    return windows


def _marker(report: Report) -> Marker | None:
    lag = report.lag
    if report.stream is None or lag is None:
        return None
    return Marker(
        name=report.stream,
        kind="stream",
        at=float(lag.position.time),
        ratio=lag.headroom_ratio,
        age_seconds=lag.age_seconds,
        level=report.verdict.level.name.lower(),
        is_lost=lag.lost,
        reasons=list(report.verdict.reasons),
        until_lost_seconds=lag.forecast.until_lost,
        until_lost_if_stopped_seconds=lag.forecast.until_lost_if_stopped,
        until_caught_up_seconds=lag.forecast.until_caught_up,
    )


def _bystander(oplog: Oplog, name: str, kind: str, at: float) -> Marker:
    """Mark somebody in the bar who reads topics, or through a gateway: history cannot be lost for them."""
    age = max(0.0, oplog.last.time - at)
    backlog = min(float(oplog.used_bytes), oplog.bytes_per_second * age)
    return Marker(name, kind, at, 1 - backlog / oplog.capacity_bytes, age, "ok", is_lost=False)


def shards_of(observed: Observed, streams: Sequence[Stream]) -> list[Shard]:
    """Give each shard's high-water marks, and which one the merge waits for.

    A gateway knows for how long others have waited for a shard. For captures the merge waits for the shard with the
    lowest mark, where the marks differ.
    """
    gateways = [reading.fresh for reading in observed.gateways.values() if reading.fresh is not None]
    blocking = _largest(gateways, "tailrace_merge_blocked_seconds")
    stalled = _largest(gateways, "tailrace_shard_stalled_seconds")
    marks: dict[str, list[ShardMark]] = {}
    last: dict[str, float | None] = {}
    for report in observed.reports:
        shard = report.oplog.shard
        last[shard] = float(report.oplog.last.time)
        marks.setdefault(shard, [])
        if report.stream is not None and report.lag is not None:
            marks[shard].append(ShardMark(report.stream, float(report.lag.position.time), report.lag.age_seconds))
    for shard in blocking.keys() | stalled.keys():
        last.setdefault(shard, None)
    holders = {shard for shard, seconds in blocking.items() if seconds > 0} | _behind(marks)
    return [
        Shard(
            name=shard,
            last=end,
            marks=marks.get(shard, []),
            blocks_merge=shard in holders,
            blocking_seconds=blocking.get(shard, 0.0),
            stalled_seconds=stalled.get(shard, 0.0),
        )
        for shard, end in sorted(last.items())
    ]


def _behind(marks: Mapping[str, Sequence[ShardMark]]) -> set[str]:
    """Give the shards whose mark is the lowest of a stream and at least two seconds below another."""
    found = set()
    for stream in {mark.stream for some in marks.values() for mark in some}:
        ats = {shard: mark.at for shard, some in marks.items() for mark in some if mark.stream == stream}
        lowest = min(ats, key=lambda shard: ats[shard])
        if max(ats.values()) - ats[lowest] >= 2:
            found.add(lowest)
    return found


def _largest(gateways: Sequence[Metrics], name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for metrics in gateways:
        for (shard,), seconds in metrics.by(name, "shard").items():
            found[shard] = max(seconds, found.get(shard, 0.0))
    return found


def _gauge(metrics: Metrics, name: str, stream: str) -> float | None:
    return metrics.total(name, stream=stream) if name in metrics.samples else None


def moment_of(text: Any) -> float | None:
    """Read an ISO time; None for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None
