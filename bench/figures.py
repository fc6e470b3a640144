"""Percentiles of latencies, and the power with which a cost grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

CUTS = (0.0, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 100.0)
"""The percentiles that are kept: closer to each other towards the end, as in an HdrHistogram."""


def percentile(ordered: Sequence[float], cut: float) -> float:
    """The least value that at least `cut` percent do not exceed."""
    return ordered[max(0, math.ceil(cut / 100 * len(ordered)) - 1)]


def percentiles(found: Sequence[float]) -> list[tuple[float, float]]:
    """All cuts of some values."""
    ordered = sorted(found)
    return [(cut, percentile(ordered, cut)) for cut in CUTS] if ordered else []


def exponent_of(points: Sequence[tuple[float, float]]) -> float:
    """The k of y = a x^k that lies closest to the points, by least squares of the logarithms."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle_x = sum(x for x, _ in logs) / len(logs)
    middle_y = sum(y for _, y in logs) / len(logs)
    along = sum((x - middle_x) ** 2 for x, _ in logs)
    return sum((x - middle_x) * (y - middle_y) for x, y in logs) / along if along else 0.0
