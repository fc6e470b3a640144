"""The state of a producer as plain values: for `tailrace produce --json`, `GET /state` and whoever draws it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bson.timestamp import Timestamp

from tailrace.capture.producer.status import Loss, ProducerStatus, SnapshotStatus
from tailrace.masking import shown
from tailrace.monitor import Report
from tailrace.policy import NO_POLICY, Policy
from tailrace.settings import CaptureSettings


def brief_state(status: ProducerStatus, rate: float) -> dict[str, Any]:
    """Give what fits on a line; the keys are part of the interface."""
    liveness, position, snapshot = status.liveness(), status.position, status.snapshot
    return {
        "stream": status.stream,
        "state": liveness.state.value,
        "proof": liveness.proof,
        "position": {"t": position.cluster_time.time, "i": position.cluster_time.inc} if position else None,
        "events": status.events,
        "events_per_second": round(rate, 1),
        "buffered_bytes": status.buffered,
        "snapshot": None if snapshot is None else _snapshot(snapshot),
    }


def full_state(
    status: ProducerStatus, settings: CaptureSettings, reports: Sequence[Report], policy: Policy = NO_POLICY
) -> dict[str, Any]:
    """Give everything; `reports` are the monitor's last look, one for each shard. The keys are part of the interface.

    Where shards differ, the value at the top is that of the shard that is worst off.
    """
    liveness, position, counts, snapshot = status.liveness(), status.position, status.counts, status.snapshot
    shards = [_shard(report) for report in reports]
    document: dict[str, Any] = {
        "name": status.stream,
        "state": liveness.state.value,
        "proof": liveness.proof,
        "standby": status.is_standby,
        "token": policy.shown_token(position.token) if position and position.token else None,
        "cluster_time": _iso(position.cluster_time) if position else None,
        "position_age_seconds": _worst(shards, "position_age_seconds", max),
        "window_seconds": _worst(shards, "window_seconds", min),
        "headroom_ratio": _worst(shards, "headroom_ratio", min),
        "seconds_until_history_lost": _worst(shards, "seconds_until_history_lost", min),
        "shards": shards,
        "observed_at": _iso(max((report.at for report in reports), default=None)),
        "events": counts.events,
        "bytes": counts.bytes,
        "batches": counts.batches,
        "dead_letters": counts.dead_letters,
        "errors": status.errors(),
        "buffered_bytes": status.buffered,
        "sink": shown(settings.sink),
        "source": settings.source,
        "delivery": settings.delivery,
        "format": settings.format,
        "namespaces": list(settings.namespaces),
        "slice": settings.slice,
        "started_at": _iso(status.started_at),
    }
    if snapshot is not None:
        document["snapshot"] = _snapshot(snapshot)
        if snapshot.gap is not None:
            document["recovery"] = _snapshot(snapshot) | {"gap": snapshot.gap}
    if status.loss is not None:
        document["recovery"] = document.get("recovery", {"finished": False}) | _loss(status.loss)
    return document


def _loss(loss: Loss) -> dict[str, Any]:
    return {"gap": loss.gap, "turn": loss.turn, "pause_seconds": round(loss.pause, 2)}


def _snapshot(snapshot: SnapshotStatus) -> dict[str, Any]:
    return {
        "reason": snapshot.reason,
        "finished": snapshot.finished,
        "chunks": snapshot.chunks,
        "chunks_done": snapshot.chunks_done,
        "documents": snapshot.documents,
        "documents_read": snapshot.documents_read,
        "documents_per_second": round(snapshot.rate, 1),
        "seconds_left": snapshot.seconds_left,
    }


def _shard(report: Report) -> dict[str, Any]:
    oplog, lag = report.oplog, report.lag
    shown = {
        "name": oplog.shard,
        "first": _iso(oplog.first),
        "last": _iso(oplog.last),
        "window_seconds": oplog.window_seconds,
        "used_bytes": oplog.used_bytes,
        "limit_bytes": oplog.limit_bytes,
        "full": oplog.full,
        "member": oplog.member,
        "others": [{"member": other.member, "window_seconds": other.window_seconds} for other in oplog.others],
        "level": report.verdict.level.name.lower(),
        "reasons": list(report.verdict.reasons),
    }
    if lag is None:  # no position was saved yet
        return shown
    return shown | {
        "position_age_seconds": lag.age_seconds,
        "headroom_ratio": round(lag.headroom_ratio, 6),
        "lost": lag.lost,
        "seconds_until_history_lost": lag.forecast.until_lost,
        "seconds_until_history_lost_if_stopped": lag.forecast.until_lost_if_stopped,
    }


def _worst(shards: Sequence[dict[str, Any]], key: str, choose: Any) -> float | None:
    known = [shard[key] for shard in shards if shard.get(key) is not None]
    return choose(known) if known else None


def _iso(moment: Timestamp | float | None) -> str | None:
    if moment is None:
        return None
    seconds = moment.time if isinstance(moment, Timestamp) else moment
    return datetime.fromtimestamp(seconds, UTC).isoformat()
