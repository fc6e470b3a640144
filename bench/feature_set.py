"""The features that the benchmarks keep, of the payments of `bench.workload.transaction`."""

from __future__ import annotations

from tailrace.features.declaration import parse_definition
from tailrace.features.definition import Definition

NAME = "bench"
REDIS_OPTIONS = {"appendfsync": "everysec"}
"""The server's option as it is by default; the stand's own syncs before each answer."""


def definition(namespace: str = "bench.orders") -> Definition:
    """Five features per user over three windows."""
    return parse_definition(
        {
            "name": NAME,
            "namespace": namespace,
            "entity": "user_id",
            "time": "placed_at",
            "lateness": "1h",
            "feature": [
                {"name": "n_1m", "kind": "count", "window": "1m"},
                {"name": "n_1h", "kind": "count", "window": "1h"},
                {"name": "amount_1h", "kind": "sum", "of": "amount", "window": "1h"},
                {"name": "velocity", "kind": "velocity", "window": "1h"},
                {"name": "merchants", "kind": "distinct", "of": "merchant", "window": "today"},
            ],
        }
    )
