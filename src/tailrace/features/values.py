"""What features are at a moment, computed from rows: the model that every way of computing them has to equal.

`keep.lua` keeps the same as running totals. Both give the same texts, which are those of the published hash, and
`typed` makes values of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from tailrace.features.arithmetic import evaluate, parse_expression
from tailrace.features.contribution import BUCKETS, bucket_value
from tailrace.features.definition import BY_ROW, Definition, Feature, Kind

Row = Mapping[str, Any]
"""What one document contributes, as `contribution.row_of` makes it."""
_COUNTS: Final = {Kind.COUNT, Kind.DISTINCT}
_ZERO: Final = {Kind.COUNT, Kind.DISTINCT, Kind.SUM, Kind.VELOCITY}


def computed(definition: Definition, rows: Sequence[Row], at: int, *, only_rolling: bool = False) -> dict[str, str]:
    """Give the features, from rows in the order of their times (then of their ids); expressions are not among them."""
    values: dict[str, str] = {}
    for feature in definition.features:
        if feature.kind is Kind.EXPRESSION or (only_rolling and feature.window.is_forever):
            continue
        span = feature.window.span(at)
        inside = [row for row in rows if span.lower < row["t"] <= span.upper]
        if feature.condition and feature.kind in BY_ROW:
            inside = [row for row in inside if feature.condition in row.get("c", ())]
        values[feature.name] = _KINDS[feature.kind](feature, inside, at)
    return values


def typed(
    definition: Definition, texts: Mapping[str, str], elapsed: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Give the values of all features, from their texts; times since something are longer by what has elapsed."""
    values: dict[str, Any] = {}
    for feature in definition.features:
        if feature.kind is Kind.EXPRESSION:
            found: Any = evaluate(parse_expression(feature.expression), values)
            values[feature.name] = feature.default if found is None else found
        else:
            values[feature.name] = _typed(feature, texts.get(feature.name, ""), (elapsed or {}).get(feature.name, 0.0))
    return values


def _typed(feature: Feature, text: str, elapsed: float) -> Any:
    if not text:
        if feature.default is not None:
            return feature.default
        if feature.n is not None:
            return []
        return (0 if feature.kind in _COUNTS else 0.0) if feature.kind in _ZERO else None
    if feature.kind is Kind.LAST:
        return orjson.loads(text)
    if feature.kind in _COUNTS:
        return int(float(text))
    return float(text) + (elapsed if feature.kind is Kind.SINCE_LAST else 0.0)


def default_text(feature: Feature) -> str:
    """Give the default as the published hash has it."""
    if feature.kind is Kind.LAST:
        return orjson.dumps(feature.default).decode()
    return repr(float(feature.default)) if feature.kind not in _COUNTS else str(feature.default)  # type: ignore[arg-type]


def _count(_: Feature, rows: Sequence[Row], __: int) -> str:
    return str(len(rows))


def _velocity(feature: Feature, rows: Sequence[Row], _: int) -> str:
    assert feature.window.length is not None
    return repr(len(rows) * 60_000 / feature.window.length)


def _numbers(feature: Feature, rows: Sequence[Row]) -> list[float]:
    return [row["n"][feature.source] for row in rows if feature.source in row["n"]]


def _sum(feature: Feature, rows: Sequence[Row], _: int) -> str:
    return repr(math.fsum(_numbers(feature, rows)))


def _of_some(compute: Callable[[list[float]], float], least: int = 1) -> Callable[[Feature, Sequence[Row], int], str]:
    def value(feature: Feature, rows: Sequence[Row], _: int) -> str:
        numbers = _numbers(feature, rows)
        return repr(compute(numbers)) if len(numbers) >= least else ""

    return value


def _percentile(feature: Feature, rows: Sequence[Row], _: int) -> str:
    buckets = sorted(int(row["s"][feature.source]) for row in rows if feature.source in row["s"])
    assert feature.q is not None
    return repr(bucket_value(buckets[max(math.ceil(feature.q * len(buckets)), 1) - 1])) if buckets else ""


def _distinct(feature: Feature, rows: Sequence[Row], _: int) -> str:
    count = len({row["s"][feature.source] for row in rows if feature.source in row["s"]})
    if not feature.approximate:
        return str(count)
    return str(math.floor(BUCKETS * math.log(BUCKETS / max(BUCKETS - count, 1)) + 0.5))


def _last(feature: Feature, rows: Sequence[Row], _: int) -> str:
    if feature.n is None:
        return str(rows[-1]["l"].get(feature.of, "")) if rows else ""
    newest = rows[: -feature.n - 1 : -1]
    return f"[{','.join(row['l'].get(feature.of, 'null') for row in newest)}]" if newest else ""


def _since_last(_: Feature, rows: Sequence[Row], at: int) -> str:
    return repr((at - rows[-1]["t"]) / 1000) if rows else ""


_KINDS: Final[Mapping[Kind, Callable[[Feature, Sequence[Row], int], str]]] = {
    Kind.COUNT: _count,
    Kind.VELOCITY: _velocity,
    Kind.SUM: _sum,
    Kind.MEAN: _of_some(lambda numbers: math.fsum(numbers) / len(numbers)),
    Kind.STDDEV: _of_some(statistics.stdev, 2),
    Kind.PERCENTILE: _percentile,
    Kind.MIN: _of_some(min),
    Kind.MAX: _of_some(max),
    Kind.DISTINCT: _distinct,
    Kind.LAST: _last,
    Kind.SINCE_LAST: _since_last,
}
