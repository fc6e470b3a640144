"""Holds a JSON value against a JSON schema, as far as the dashboard's description uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def complaints(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any], path: str = "$") -> Iterator[str]:
    """Say everything that is wrong with a value."""
    if "$ref" in schema:
        yield from complaints(value, schemas[schema["$ref"].rpartition("/")[2]], schemas, path)
    elif "anyOf" in schema:
        found = [list(complaints(value, each, schemas, path)) for each in schema["anyOf"]]
        if all(found):
            yield f"{path}: {value!r} is none of {schema['anyOf']}"
    elif "type" in schema and not _has_type(value, schema["type"]):
        yield f"{path}: {value!r} is no {schema['type']}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    elif isinstance(value, dict):
        yield from _object_complaints(value, schema, schemas, path)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from complaints(each, schema.get("items", {}), schemas, f"{path}[{number}]")


def _object_complaints(
    value: dict[str, Any], schema: Mapping[str, Any], schemas: Mapping[str, Any], path: str
) -> Iterator[str]:
    properties = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name} is missing"
    for name, each in value.items():
        if name in properties:
            yield from complaints(each, properties[name], schemas, f"{path}.{name}")
        elif rest is False:
            yield f"{path}.{name} is not described"
        elif isinstance(rest, dict):
            yield from complaints(each, rest, schemas, f"{path}.{name}")


def _has_type(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        return isinstance(value, int | float if kind == "number" else int) and not isinstance(value, bool)
    return isinstance(value, _TYPES[kind])
