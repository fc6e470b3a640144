"""A definition with every kind of feature, and changes made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson

from tailrace.features import Definition
from tailrace.features.declaration import parse_definition
from tailrace.features.store import Change


def every_kind(name: str = "test", **options: Any) -> Definition:
    windows = ["1m", "1h", "today", "forever"]
    features: list[dict[str, Any]] = []
    for window in windows:
        features += [
            {"name": f"count_{window}", "kind": "count", "window": window},
            {"name": f"sum_{window}", "kind": "sum", "of": "amount", "window": window},
            {"name": f"mean_{window}", "kind": "mean", "of": "amount", "window": window},
            {"name": f"min_{window}", "kind": "min", "of": "amount", "window": window},
            {"name": f"max_{window}", "kind": "max", "of": "amount", "window": window},
            {"name": f"distinct_{window}", "kind": "distinct", "of": "merchant", "window": window},
            {"name": f"last_{window}", "kind": "last", "of": "merchant", "window": window},
            {"name": f"since_{window}", "kind": "since_last", "window": window},
        ]
    features.append({"name": "velocity", "kind": "velocity", "window": "1m"})
    form = {"name": name, "namespace": "shop.tx", "entity": "user", "time": "at", "feature": features, **options}
    return parse_definition({"time_zone": "Europe/Berlin", **form})


def version(number: int) -> str:
    return f"82{number:016X}"


def put(number: int, document: dict[str, Any]) -> Change:
    return Change(str(document["_id"]), version(number), bson.encode(document), as_of=number, wall_ms=number * 1000)


def delete(number: int, key: object) -> Change:
    return Change(str(key), version(number), is_delete=True, as_of=number)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
