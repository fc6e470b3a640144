"""What a Prometheus would scrape from our registry: names with their labels, and samples as series."""

from __future__ import annotations

from tailrace.monitor.metrics import REGISTRY


def labels_by_metric() -> dict[str, set[str]]:
    """Give every name that can stand in an expression, with its labels."""
    found: dict[str, set[str]] = {}
    for family in REGISTRY.collect():
        # A metric with labels has no samples yet; what describes the process has no labels.
        collector = REGISTRY._names_to_collectors.get(family.name)
        labels = set(getattr(collector, "_labelnames", ()))
        for name in _names(family.name, family.type):
            found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    return found


def _names(name: str, kind: str) -> list[str]:
    if kind == "counter":
        return [f"{name}_total"]
    return [f"{name}{end}" for end in ("_bucket", "_sum", "_count")] if kind == "histogram" else [name]


def samples() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Give what a scrape would bring now."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
    }
