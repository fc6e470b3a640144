"""Values as the server writes them into its error messages."""

from __future__ import annotations

import json
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace.engine.expression.values import (
    MISSING,
    UNDEFINED,
    Binary,
    Code,
    CodeWithScope,
    Date,
    DbPointer,
    Document,
    Regex,
    Symbol,
    Value,
    text_of,
)


def render_document(document: Document) -> str:
    """Write a document as `{ name: value }`."""
    fields = [f"{text_of(name)}: {render(value)}" for name, value in document.items()]
    return f"{{ {', '.join(fields)} }}" if fields else "{}"


def render(value: Value) -> str:
    """Write one value."""
    return str(_RENDERERS[type(value)](value))


def _double(number: float) -> str:
    text = f"{number:.16g}"
    return text + ".0" if text.lstrip("-").isdigit() else text


_RENDERERS: dict[type, Any] = {
    float: _double,
    str: lambda value: json.dumps(value, ensure_ascii=False),
    Document: render_document,
    list: lambda value: f"[ {', '.join(map(render, value))} ]" if value else "[]",
    Binary: lambda value: f"BinData({value.subtype}, {value.data.hex().upper()})",
    type(UNDEFINED): lambda _: "undefined",
    type(MISSING): lambda _: "MISSING",
    ObjectId: lambda value: f"ObjectId('{value}')",
    bool: lambda value: "true" if value else "false",
    Date: lambda value: f"new Date({value.millis})",
    type(None): lambda _: "null",
    Regex: lambda value: f"/{value.pattern}/{value.options}",
    DbPointer: lambda value: f"DBRef('{value.namespace}',{value.id})",
    Code: lambda value: value.source,
    Symbol: lambda value: json.dumps(value.text, ensure_ascii=False),
    CodeWithScope: lambda value: f"CodeWScope( {value.source}, {render_document(value.scope)})",
    int: str,
    Int64: str,
    Timestamp: lambda value: f"Timestamp({value.time}, {value.inc})",
    Decimal128: str,
    MinKey: lambda _: "MinKey",
    MaxKey: lambda _: "MaxKey",
}
