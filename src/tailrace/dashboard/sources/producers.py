"""A producer's own endpoint: its state and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.dashboard.sources.fetching import fetch, place_of
from tailrace.dashboard.sources.metrics_text import Metrics
from tailrace.errors import ServerUnreachable


@dataclass(frozen=True, slots=True)
class ProducerReading:
    """What a producer says of itself."""

    place: str
    state: dict[str, Any]
    metrics: Metrics


class ProducerSource:
    """Asks one producer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.place = place_of(url)
        self.name = f"producer {self.place}"

    def look(self) -> ProducerReading:
        """Ask for the state and the metrics."""
        answer = fetch(self.url, "/state")
        if answer.status != 200:
            raise ServerUnreachable(f"{self.place} is no producer: /state is answered with HTTP {answer.status}")
        return ProducerReading(self.place, answer.json(), Metrics.scrape(self.url))

    def close(self) -> None:
        """Every look has a connection of its own."""
