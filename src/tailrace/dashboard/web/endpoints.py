"""The JSON API: one table of what can be asked, from which both the routes and the OpenAPI description are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tailrace.dashboard import answers, values
from tailrace.dashboard.web.actions import ACTIONS


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of a path or a query."""

    name: str
    location: str
    """path or query."""
    description: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Something that can be asked for by GET."""

    path: str
    summary: str
    answer: Any
    """The type of the answer."""
    part: Callable[[values.State], Any] | None = None
    """How the answer is taken from the state; None for those with a handler of their own."""
    parameters: tuple[Parameter, ...] = ()


def _part(name: str) -> Callable[[values.State], Any]:
    return lambda state: getattr(state, name)


PARTS = (
    Endpoint("/api/state", "Everything at this moment.", values.State, lambda state: state),
    Endpoint("/api/flow", "The pipeline: boxes with their condition, arrows with rate and latency.", values.Flow,
             _part("flow")),
    Endpoint("/api/oplog", "The oplog of every shard, and all positions in it.", list[values.OplogWindow],
             _part("oplog")),
    Endpoint("/api/streams", "The captures.", list[values.Stream], _part("streams")),
    Endpoint("/api/shards", "The shards' high-water marks, and who holds the merge back.", list[values.Shard],
             _part("shards")),
    Endpoint("/api/gateways", "The gateways and their watchers.", list[values.Gateway], _part("gateways")),
    Endpoint("/api/features", "The features jobs.", list[values.FeatureSet], _part("features")),
    Endpoint("/api/tables", "The Iceberg tables with their newest snapshots.", list[values.Table], _part("tables")),
    Endpoint("/api/drift", "Changes of schemas.", list[values.Drift], _part("drift")),
    Endpoint("/api/gaps", "The ledger of gaps.", list[values.GapEntry], _part("gaps")),
    Endpoint("/api/dead-letters", "The newest dead letters of capture and of the jobs.", list[values.DeadLetters],
             _part("dead_letters")),
    Endpoint("/api/latency", "Percentiles of every hop over five minutes.", list[values.Latency], _part("latency")),
    Endpoint("/api/sources", "What the dashboard polls, and how that went.", list[values.SourceStatus],
             _part("sources")),
)  # fmt: skip
QUESTIONS = (
    Endpoint("/api/history", "The series of the charts.", answers.History, None, (
        Parameter("span", "query", "How far back.", {"type": "string", "enum": ["5m", "1h"], "default": "5m"}),
    )),
    Endpoint("/api/events", "The newest live events, the newest first.", list[answers.EventLine], None, (
        Parameter("limit", "query", "The most that are given.",
                  {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
        Parameter("namespace", "query", "Only of this db.collection."),
        Parameter("operation", "query", "Only of this operationType."),
        Parameter("text", "query", "Only those that show this text."),
    )),
    Endpoint("/api/events/{number}", "A live event in full, with its decoded token.", answers.EventDetail, None, (
        Parameter("number", "path", "Its number.", {"type": "integer", "minimum": 1}),
    )),
    Endpoint("/api/features/{name}/{entity}", "The features of an entity, now.", answers.EntityFeatures, None, (
        Parameter("name", "path", "Name of the definition."),
        Parameter("entity", "path", "The entity."),
    )),
    Endpoint("/api/tokens/{token}", "What is inside a resume token.", dict[str, Any], None, (
        Parameter("token", "path", "The hexadecimal digits of its `_data`."),
    )),
)  # fmt: skip
ACTION_BODIES: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "snapshot": {"namespaces": {"type": "array", "items": {"type": "string"}, "description": "None are all."}},
    "recover": {
        "dry_run": {"type": "boolean", "default": True, "description": "Show what would be done, and do nothing."},
        "confirmation": {"type": "string", "description": "What a dry run within ten minutes gave."},
    },
}
assert set(ACTION_BODIES) == set(ACTIONS)
