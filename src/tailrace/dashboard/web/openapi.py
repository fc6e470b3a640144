"""The OpenAPI description, made of the table of endpoints and the classes of their answers."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from tailrace import __version__
from tailrace.dashboard import answers
from tailrace.dashboard.web.endpoints import ACTION_BODIES, PARTS, QUESTIONS, Endpoint

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
