"""The JSON API: one table of what can be asked, from which both the routes and the OpenAPI description are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from tailrace import __version__
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


_REFERENCE = "#/components/schemas/{model}"


@cache
def description() -> dict[str, Any]:
    """Give the whole document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {each.path: {"get": _get(each, schemas)} for each in (*PARTS, *QUESTIONS)}
    paths["/api/stream"] = {"get": _stream()}
    for action, properties in ACTION_BODIES.items():
        paths[f"/api/actions/{action}"] = {"post": _post(action, properties, schemas)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tailrace dashboard",
            "version": __version__,
            "description": "Moments are in Unix seconds, durations in seconds, sizes in bytes; null is not known.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "dashboard.token"}},
        },
    }


def _get(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {
            "name": one.name,
            "in": one.location,
            "required": one.location == "path",
            "description": one.description,
            "schema": one.schema,
        }
        for one in endpoint.parameters
    ]
    return {
        "summary": endpoint.summary,
        "operationId": endpoint.path.removeprefix("/api/").replace("/", "_").replace("{", "").replace("}", ""),
        "parameters": parameters,
        # On loopback no token is needed for looking.
        "security": [{}, {"token": []}],
        "responses": _responses(schema_of(endpoint.answer, schemas), schemas, has_parameters=bool(parameters)),
    }


def _post(action: str, properties: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    which = {"producer": {"type": "string", "description": "Its endpoint; may be left out when there is only one."}}
    body = {"type": "object", "properties": which | properties, "additionalProperties": False}
    return {
        "summary": f"Ask a producer: {action}.",
        "operationId": action,
        "security": [{"token": []}],
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": _responses(schema_of(answers.ActionAnswer, schemas), schemas, has_parameters=True),
    }


def _stream() -> dict[str, Any]:
    return {
        "summary": "Server-sent events: `state` every second (as /api/state) and `events` (as /api/events).",
        "operationId": "stream",
        "security": [{}, {"token": []}],
        "responses": {"200": {"description": "The stream.", "content": {"text/event-stream": {}}}},
    }


def _responses(schema: dict[str, Any], schemas: dict[str, Any], *, has_parameters: bool) -> dict[str, Any]:
    refused = {"application/json": {"schema": schema_of(answers.Problem, schemas)}}
    responses: dict[str, Any] = {
        "200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}},
        "401": {"description": "The token is missing or wrong.", "content": refused},
    }
    if has_parameters:
        responses["default"] = {"description": "Why there is no answer.", "content": refused}
    return responses


def schema_of(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Give the JSON schema of a type; the classes it is made of go to `schemas`. Objects have no fields but theirs."""
    found = TypeAdapter(kind).json_schema(mode="serialization", ref_template=_REFERENCE)
    for name, schema in found.pop("$defs", {}).items():
        schemas[name] = _closed(schema)
    if "properties" in found:
        schemas[found["title"]] = _closed(found)
        return {"$ref": _REFERENCE.format(model=found["title"])}
    return found


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    if "properties" not in schema:
        return schema
    return {**schema, "required": list(schema["properties"]), "additionalProperties": False}
