"""The picture: a box for every part of the pipeline, arrows with rates and latencies between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from tailrace.dashboard.answers import shown_folder
from tailrace.dashboard.values import (
    Arrow,
    Box,
    Colour,
    Condition,
    Fact,
    FeatureSet,
    Flow,
    Gateway,
    Latency,
    Stream,
    Table,
)
from tailrace.dashboard.view import conditions
from tailrace.dashboard.view.observed import Observed
from tailrace.masking import shown
from tailrace.settings import Settings

_SINKS = {"file": "File", "stdout": "Standard output", "http": "Webhook", "https": "Webhook", "redis": "Redis cache"}
_DELIVERING = ("idle", "live", "recovering")
_DEAD_LETTERS = {"capture": "capture", "features": "features", "tables": "warehouse"}
"""Who writes the dead letters of a box."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the picture is made of, beside what was observed."""

    streams: Sequence[Stream]
    gateways: Sequence[Gateway]
    features: Sequence[FeatureSet]
    tables: Sequence[Table]
    latency: Sequence[Latency]
    topic_rate: float | None
    feature_rate: float | None
    table_rate: float | None


def flow_of(observed: Observed, parts: Parts, settings: Settings) -> Flow:
    """Draw everything that is configured or there."""
    boxes = [_mongodb(observed, settings), _capture(observed, parts, settings), _sink(observed, parts, settings)]
    boxes += [_features(observed, parts, settings), _tables(observed, parts, settings)]
    if observed.gateways:
        boxes.append(_gateway(parts))
    return Flow([_with_dead_letters(box, observed) for box in boxes], _arrows(observed, parts))


def _with_dead_letters(box: Box, observed: Observed) -> Box:
    """Let a box say how many dead letters its part has."""
    written = [reading.value for reading in observed.dead_letters if reading.value is not None]
    own = next((dead_letters for dead_letters in written if dead_letters.part == _DEAD_LETTERS.get(box.id)), None)
    return (
        box if own is None else replace(box, condition=conditions.with_dead_letters(box.condition, own, observed.now))
    )


def is_configured(source: str, settings: Settings) -> bool:
    """Whether somebody named a source in the settings; one that only has a default may well not exist."""
    named_by = {
        "mongodb": (settings.mongodb, "uri"),
        "producer": (settings.dashboard, "producers"),
        "kafka": (settings.capture, "sink"),
        "redis": (settings.features, "redis_url"),
        "iceberg": (settings.warehouse, "folder"),
    }
    section, key = named_by.get(source.partition(" ")[0], (None, ""))
    return section is None or key in section.model_fields_set


def _mongodb(observed: Observed, settings: Settings) -> Box:
    condition = conditions.of_reading(observed.oplog, "MongoDB", is_wanted=is_configured("mongodb", settings))
    facts = []
    if condition.colour is Colour.GREEN and observed.reports:
        condition = conditions.of_reports(observed.reports)
        shards = {report.oplog.shard: report.oplog for report in observed.reports}
        shortest = min(oplog.window_seconds for oplog in shards.values())
        facts = [
            Fact("oplog window", conditions.spoken(shortest)),
            Fact("replica sets" if len(shards) > 1 else "replica set", _names(list(shards))),
        ]
    return Box("mongodb", "MongoDB", _hosts(settings.mongodb.uri.get_secret_value()), condition, facts)


def _capture(observed: Observed, parts: Parts, settings: Settings) -> Box:
    unanswered = [reading for reading in observed.producers.values() if reading.fresh is None]
    wanted = is_configured("producer", settings)
    answers = [conditions.of_reading(reading, "the producer", is_wanted=wanted) for reading in unanswered]
    judged = [stream.condition for stream in parts.streams]
    nothing = Condition(Colour.GREY, "no producer is known: set dashboard.producers")
    condition = conditions.worst([*judged, *(each for each in answers if not judged or wanted)], nothing)
    facts = []
    if parts.streams:
        lags = [stream.position_age_seconds for stream in parts.streams if stream.position_age_seconds is not None]
        facts = [
            Fact("state", ", ".join(dict.fromkeys(stream.state for stream in parts.streams))),
            Fact("lag", conditions.spoken(max(lags)) if lags else "unknown"),
        ]
    streams = [stream.name for stream in parts.streams]
    return Box("capture", "Capture", _names(streams) if streams else _names(list(observed.producers)), condition, facts)


def _sink(observed: Observed, parts: Parts, settings: Settings) -> Box:
    location = shown(settings.capture.sink)
    if observed.topics is None:
        scheme = urlsplit(settings.capture.sink.get_secret_value()).scheme
        return Box("sink", _SINKS.get(scheme, "Sink"), location, _unread_sink(parts.streams))
    condition = conditions.of_reading(observed.topics, "Kafka", is_wanted=is_configured("kafka", settings))
    facts = []
    value = observed.topics.fresh
    if value is not None:
        newest = (
            "none yet"
            if value.newest_at is None
            else f"{conditions.spoken(max(0.0, observed.now - value.newest_at))} ago"
        )
        facts = [Fact("topics", f"{value.topics} ({value.partitions} partitions)"), Fact("newest event", newest)]
    return Box("sink", "Kafka", location, condition, facts)


def _unread_sink(streams: Sequence[Stream]) -> Condition:
    """Judge a sink that cannot be looked into by those who write to it."""
    if any(stream.state in _DELIVERING for stream in streams):
        return Condition(Colour.GREEN, "capture delivers to it")
    slow = [f"{stream.name} is {stream.condition.reason}" for stream in streams if stream.state == "behind"]
    if slow:  # it may be the sink that takes nothing; the reason says so
        return Condition(Colour.AMBER, slow[0])
    return Condition(Colour.GREY, "it cannot be looked into, and nothing delivers to it")


def _features(observed: Observed, parts: Parts, settings: Settings) -> Box:
    condition = conditions.of_reading(observed.features, "Redis", is_wanted=is_configured("redis", settings))
    facts = []
    if condition.colour is Colour.GREEN:
        nothing = Condition(Colour.GREY, "Redis answers, and no job has written features yet")
        condition = conditions.worst([one.condition for one in parts.features], nothing)
        if parts.features:
            newest = max(parts.features, key=lambda one: one.updated_at or 0.0)
            facts = [
                Fact("definitions", _names([one.name for one in parts.features])),
                Fact("batch", "none" if newest.batch is None else f"{newest.batch:,}"),
            ]
    return Box("features", "Features in Redis", shown(settings.features.redis_url), condition, facts)


def _tables(observed: Observed, parts: Parts, settings: Settings) -> Box:
    condition = conditions.of_reading(observed.tables, "the warehouse", is_wanted=is_configured("iceberg", settings))
    facts = []
    if condition.colour is Colour.GREEN:
        condition = _state_of_tables(observed, parts, settings)
        if parts.tables:
            rows = sum(table.rows or 0 for table in parts.tables if table.kind == "mirror")
            facts = [Fact("tables", f"{len(parts.tables)}"), Fact("rows mirrored", f"{rows:,}")]
    title = "Delta tables" if settings.warehouse.format == "delta" else "Iceberg tables"
    return Box("tables", title, shown_folder(str(settings.warehouse.folder)), condition, facts)


def _state_of_tables(observed: Observed, parts: Parts, settings: Settings) -> Condition:
    if not parts.tables:
        return Condition(Colour.GREY, "the warehouse has no tables yet")
    newest = max((table.cluster_time for table in parts.tables if table.cluster_time is not None), default=None)
    made = max((table.snapshots[0].at for table in parts.tables if table.snapshots), default=None)
    if newest is None:
        return Condition(
            Colour.GREEN, f"the newest snapshot is {conditions.spoken(observed.now - (made or observed.now))} old"
        )
    return conditions.of_progress("tables", newest, made, observed.newest_event, observed.now, settings.monitor)


def _gateway(parts: Parts) -> Box:
    nothing = Condition(Colour.GREY, "no gateway is configured")
    condition = conditions.worst([gateway.condition for gateway in parts.gateways], nothing)
    watchers = sum(gateway.watchers for gateway in parts.gateways)
    locations = [gateway.listener or gateway.location for gateway in parts.gateways]
    clients = sum(gateway.connections for gateway in parts.gateways)
    is_there = any(gateway.listener is not None for gateway in parts.gateways)
    facts = [Fact("watchers", f"{watchers:,}"), Fact("clients", f"{clients:,}")] if is_there else []
    return Box("gateway", "Gateway", _names(locations), condition, facts)


def _arrows(observed: Observed, parts: Parts) -> list[Arrow]:
    p50 = {one.hop: one.p50 for one in parts.latency}
    captured = sum(stream.events_per_second for stream in parts.streams) if observed.answering else None
    lags = [stream.position_age_seconds for stream in parts.streams if stream.position_age_seconds is not None]
    arrows = [
        Arrow("mongodb", "capture", captured, max(lags, default=None), "lag of the position"),
        Arrow("capture", "sink", captured if observed.topics is None else parts.topic_rate, p50.get("mongodb-kafka"),
              "MongoDB → Kafka, median"),
        Arrow("sink", "features", parts.feature_rate, p50.get("kafka-redis", p50.get("mongodb-redis")),
              "Kafka → Redis, median" if "kafka-redis" in p50 else "MongoDB → Redis, median"),
        Arrow("sink", "tables", parts.table_rate, p50.get("kafka-iceberg", p50.get("mongodb-iceberg")),
              "Kafka → Iceberg, median" if "kafka-iceberg" in p50 else "MongoDB → Iceberg, median"),
    ]  # fmt: skip
    if parts.gateways:
        answering = [gateway for gateway in parts.gateways if gateway.listener is not None]
        rate = sum(gateway.events_per_second for gateway in answering) if answering else None
        slowest = max((lag.seconds for gateway in parts.gateways for lag in gateway.lags), default=None)
        arrows.append(Arrow("mongodb", "gateway", rate, slowest, "lag of the slowest watcher"))
    return arrows


def _hosts(uri: str) -> str:
    """Give the hosts of a MongoDB URI alone."""
    rest = uri.partition("://")[2].partition("/")[0]
    return rest.rpartition("@")[2]


def _names(names: Sequence[str]) -> str:
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"
