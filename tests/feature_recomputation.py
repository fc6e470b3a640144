"""Features computed the slow way, by looking at all documents: what the store has to equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tailrace.features import Definition, Feature, Kind


def recomputed(definition: Definition, documents: Sequence[Mapping[str, Any]], at_ms: int) -> dict[str, Any]:
    """The features of one entity, of all its documents."""
    return {one.name: _value(one, definition.time, documents, at_ms) for one in definition.features}


def _ms(moment: Any) -> int | None:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000) if isinstance(moment, datetime) else None


def _value(feature: Feature, time: str, documents: Sequence[Mapping[str, Any]], at_ms: int) -> Any:
    span = feature.window.span(at_ms)
    timed = [(_ms(document.get(time)), document) for document in documents]
    inside = [
        (moment, document)
        for moment, document in timed
        if feature.window.is_forever or (moment is not None and span.lower < moment <= span.upper)
    ]
    if feature.kind is Kind.COUNT:
        return len(inside)
    if feature.kind is Kind.VELOCITY:
        return len(inside) * 60_000 / feature.window.length
    newest = max(((m, str(d["_id"]), d) for m, d in inside if m is not None), key=lambda row: row[:2], default=None)
    if feature.kind is Kind.SINCE_LAST:
        return None if newest is None else (at_ms - newest[0]) / 1000
    if feature.kind is Kind.LAST:
        return None if newest is None else newest[2].get(feature.of)
    values = [document.get(feature.of) for _, document in inside if document.get(feature.of) is not None]
    if feature.kind is Kind.DISTINCT:
        return len(set(values))
    if feature.kind is Kind.SUM:
        return math.fsum(values)
    if not values:
        return None
    if feature.kind is Kind.MEAN:
        return math.fsum(values) / len(values)
    return min(values) if feature.kind is Kind.MIN else max(values)
