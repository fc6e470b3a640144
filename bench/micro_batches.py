"""Where the time of a query's micro-batches goes: what Spark reports of each, and what is timed inside of them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from statistics import median
from typing import Any

_REPORTED = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")


class MicroBatches:
    """Medians over the batches since the last question."""

    def __init__(self) -> None:
        self._inside: dict[str, list[float]] = defaultdict(list)
        self._next = 0

    def time_calls(self, owner: type, method: str, label: str) -> None:
        """Time a method that is called once in a batch, whoever calls it."""
        original: Callable[..., Any] = getattr(owner, method)

        @wraps(original)
        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                self._inside[label].append(1_000 * (time.perf_counter() - begun))

        setattr(owner, method, timed)

    def told(self, query: Any) -> str:
        """Say how many batches with events there were, how large, and the median of each part in milliseconds."""
        batches = [one for one in query.recentProgress if one["numInputRows"] and one["batchId"] >= self._next]
        if not batches:
            return ""
        self._next = batches[-1]["batchId"] + 1
        parts = {name: median(one["durationMs"].get(name, 0) for one in batches) for name in _REPORTED}
        parts |= {label: median(found) for label, found in self._inside.items() if found}
        self._inside.clear()
        events = median(one["numInputRows"] for one in batches)
        figures = ", ".join(f"{name} {value:.0f}" for name, value in parts.items())
        return f"{len(batches)} of {events:.0f} events; {figures}"
