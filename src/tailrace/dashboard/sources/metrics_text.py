"""The numbers of a Prometheus endpoint, and how fast its counters grow."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from tailrace.errors import ServerUnreachable
from tailrace.http_client import fetch

_SECONDS_OF_A_RATE = 4.0
"""Over which time a rate is taken: longer than the interval of polls, so that it does not flicker."""
_MOST_RATES = 2_000


@dataclass(frozen=True, slots=True)
class Metrics:
    """Samples by name, each with its labels."""

    samples: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Read Prometheus's text format; only what tailrace counts is kept."""
        found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            if family.name.startswith("tailrace_"):
                for sample in family.samples:
                    found[sample.name].append((sample.labels, sample.value))
        return cls(dict(found))

    @classmethod
    def scrape(cls, url: str, path: str = "/metrics", *, address: str | None = None) -> Metrics:
        """Ask an endpoint for them, at one of its addresses if it has several."""
        answer = fetch(url, path, address=address)
        if answer.status != 200:
            raise ServerUnreachable(f"the metrics are answered with HTTP {answer.status}")
        return cls.parse(answer.text)

    def total(self, name: str, **labels: str) -> float:
        """Give the sum of a metric over everything that has these labels."""
        wanted = labels.items()
        return sum(value for found, value in self.samples.get(name, ()) if wanted <= found.items())

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Give the sums of a metric by the values of some labels."""
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for found, value in self.samples.get(name, ()):
            sums[tuple(found.get(label, "") for label in labels)] += value
        return dict(sums)

    def values(self, label: str) -> list[str]:
        """Give the values that a label has anywhere, sorted."""
        return sorted({found[label] for some in self.samples.values() for found, _ in some if label in found})


class Rates:
    """How fast counters grow, by any key; a counter that begins anew (its process was restarted) is no step back."""

    def __init__(self, seconds: float = _SECONDS_OF_A_RATE) -> None:
        self._seconds = seconds
        self._observed: dict[Hashable, deque[tuple[float, float]]] = {}

    def growth(self, key: Hashable, total: float, at: float) -> tuple[float, float]:
        """Take a total; give how much it grew in the last seconds, and in how many."""
        if key not in self._observed and len(self._observed) >= _MOST_RATES:
            self._observed.clear()
        observed = self._observed.setdefault(key, deque())
        if observed and total < observed[-1][1]:
            observed.clear()
        if not observed or at > observed[-1][0]:
            observed.append((at, total))
        while len(observed) > 2 and observed[1][0] <= at - self._seconds:
            observed.popleft()
        return observed[-1][1] - observed[0][1], observed[-1][0] - observed[0][0]

    def per_second(self, key: Hashable, total: float, at: float) -> float:
        """Take a total; give its growth per second, 0 at the first poll."""
        grown, seconds = self.growth(key, total, at)
        return grown / seconds if seconds > 0 else 0.0
