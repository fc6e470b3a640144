"""Gateways, features, tables, drift and gaps as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bson.timestamp import Timestamp

from tailrace.capture.recovery.gaps import Gap
from tailrace.dashboard.sources import Reading
from tailrace.dashboard.sources.metrics_text import Metrics, Rates
from tailrace.dashboard.values import (
    Colour,
    Condition,
    Drift,
    FeatureSet,
    GapEntry,
    Gateway,
    HubShard,
    Table,
    TableSnapshot,
    WatcherLag,
)
from tailrace.dashboard.view import conditions
from tailrace.dashboard.view.observed import Observed
from tailrace.dashboard.view.stream_view import moment_of
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import MonitorSettings
from tailrace.token import ResumeToken
from tailrace.warehouse import TableState

TOKEN_PROPERTY = "tailrace.token"
"""Where the warehouse job says in a snapshot which event is its newest."""
_SNAPSHOTS_SHOWN = 20
_MOST_LAGS = 50
_MOST_DRIFT = 200


def gateways_of(observed: Observed, rates: Rates) -> list[Gateway]:
    """Give every gateway with its watchers."""
    return [_gateway(location, reading, rates, observed.now) for location, reading in observed.gateways.items()]


def _gateway(location: str, reading: Reading[Metrics], rates: Rates, now: float) -> Gateway:
    metrics = reading.fresh or Metrics()
    watchers = metrics.by("tailrace_hub_subscribers", "shard")
    lags = [
        WatcherLag(shard, namespace, seconds)
        for (shard, namespace), seconds in metrics.by("tailrace_hub_lag_seconds", "shard", "namespace").items()
    ]
    lags.sort(key=lambda lag: -lag.seconds)
    stalled = {shard: seconds for (shard,), seconds in metrics.by("tailrace_shard_stalled_seconds", "shard").items()}
    count = max((int(number) for number in watchers.values()), default=0)
    events, size = metrics.total("tailrace_gateway_events_total"), metrics.total("tailrace_gateway_bytes_total")
    return Gateway(
        location=location,
        condition=conditions.of_gateway(
            reading,
            count,
            stalled,
            lags[0].seconds if lags else 0.0,
            int(metrics.total("tailrace_engine_kinds", trust="distrusted")),
        ),
        listener=next(iter(metrics.values("listener")), None),
        connections=int(metrics.total("tailrace_gateway_connections")),
        watchers=count,
        events_per_second=rates.per_second(("gateway events", location), events, now),
        bytes_per_second=rates.per_second(("gateway bytes", location), size, now),
        dropped=int(metrics.total("tailrace_gateway_dropped_total")),
        passed=int(metrics.total("tailrace_gateway_passed_total")),
        shards=[
            HubShard(
                shard=shard,
                watchers=int(number),
                channels=int(metrics.total("tailrace_hub_channels", shard=shard)),
                cursors=int(metrics.total("tailrace_hub_upstream_cursors", shard=shard)),
                entries_per_second=rates.per_second(
                    ("hub", location, shard), metrics.total("tailrace_hub_entries_total", shard=shard), now
                ),
                ring_bytes=metrics.total("tailrace_hub_ring_bytes", shard=shard),
            )
            for (shard,), number in sorted(watchers.items())
        ],
        lags=lags[:_MOST_LAGS],
    )


def feature_sets_of(observed: Observed, limits: MonitorSettings, latency: Mapping[str, float]) -> list[FeatureSet]:
    """Give every features job; `latency` is the newest measurement of each by name."""
    newest, problem = observed.newest_event, observed.features.problem
    sets = []
    for progress in observed.features.value or []:
        definition = progress.definition
        at = None if progress.as_of is None else float(progress.as_of)
        sets.append(
            FeatureSet(
                name=definition.name,
                namespace=", ".join(definition.namespaces),
                entity=", ".join(definition.sources[0].entity_fields),
                features=[feature.name for feature in definition.features],
                batch=progress.batch,
                as_of=at,
                updated_at=progress.updated_at,
                latency_seconds=latency.get(definition.name),
                condition=Condition(Colour.RED, problem)
                if problem
                else conditions.of_progress("features", at, progress.updated_at, newest, observed.now, limits),
            )
        )
    return sets


def tables_of(tables: Sequence[TableState]) -> list[Table]:
    """Give every table with its newest snapshots."""
    return [_table(table) for table in tables]


def _table(table: TableState) -> Table:
    newest = newest_time(table)
    snapshots = [
        TableSnapshot(str(one.id), one.at.timestamp(), one.operation, one.added_rows, one.deleted_rows)
        for one in reversed(table.snapshots[-_SNAPSHOTS_SHOWN:])
    ]
    arrived = newest and newest[1] - newest[0].seconds
    return Table(
        name=table.name,
        kind=str(table.kind),
        rows=table.rows,
        files=table.files,
        bytes=table.bytes,
        columns=[f"{column.name}: {column.type}" for column in table.columns],
        snapshot_count=len(table.snapshots),
        snapshots=snapshots,
        cluster_time=float(newest[0].seconds) if newest else None,
        latency_seconds=max(0.0, arrived) if arrived is not None else None,
    )


def newest_time(table: TableState) -> tuple[ClusterTime, float] | None:
    """Give the cluster time of the newest event in a table, and when the snapshot that has it was made."""
    tokens = [snapshot.properties.get(TOKEN_PROPERTY) for snapshot in table.snapshots]
    newest = max(filter(None, tokens), default=None)
    if newest is None:
        return None
    time = ResumeToken.from_hex(newest).cluster_time
    # A compaction later on may name the same event.
    return ClusterTime.from_timestamp(time), table.snapshots[tokens.index(newest)].at.timestamp()


def drift_of(tables: Sequence[TableState]) -> list[Drift]:
    """Give what changed in the schemas, the newest first."""
    found = [Drift(table.name, moment_of(one.last_seen), _change(one)) for table in tables for one in table.drift]
    found.sort(key=lambda one: -(one.at or 0.0))
    return found[:_MOST_DRIFT]


def _change(one: Any) -> str:
    what = {"added": "became a column", "promoted": "widened its column", "rest": "did not fit its column"}
    kinds = f"{one.found} → {one.column}" if one.column and one.column != one.found else one.found
    times = f", {one.count:,} times" if one.count > 1 else ""
    return f"{one.field} {what.get(one.change, one.change)} ({kinds}{times})"


def gaps_of(gaps: Sequence[Gap]) -> list[GapEntry]:
    """Give the ledger, open gaps first, then the newest."""
    entries = [
        GapEntry(
            stream=gap.stream,
            number=gap.number,
            state=gap.state.value,
            reason=gap.reason,
            is_open=gap.is_open,
            last_good=_seconds(gap.last_good),
            first_known=_seconds(gap.first_known),
            found_at=gap.found_at.timestamp(),
            closed_at=gap.closed_at.timestamp() if gap.closed_at else None,
            records=gap.records,
            deletes=gap.deletes,
            notes=list(gap.notes),
        )
        for gap in gaps
    ]
    return sorted(entries, key=lambda gap: (not gap.is_open, -gap.found_at))


def _seconds(time: Timestamp | None) -> float | None:
    return None if time is None else float(time.time)
