"""A producer's own endpoint: its state and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tailrace.dashboard.sources.metrics_text import Metrics
from tailrace.errors import ServerUnreachable
from tailrace.http_client import fetch, location_of


@dataclass(frozen=True, slots=True)
class ProducerReading:
    """What a producer says of itself."""

    location: str
    state: dict[str, Any]
    metrics: Metrics


class ProducerSource:
    """Asks one producer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.location = location_of(url)
        self.name = f"producer {self.location}"

    def poll(self) -> ProducerReading:
        """Ask for the state and the metrics."""
        answer = fetch(self.url, "/state")
        if answer.status != 200:
            raise ServerUnreachable(f"{self.location} is no producer: /state is answered with HTTP {answer.status}")
        return ProducerReading(self.location, answer.json(), Metrics.scrape(self.url))

    def close(self) -> None:
        """Every poll has a connection of its own."""


class GatewaySource:
    """Asks one gateway."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.location = location_of(url)
        self.name = f"gateway {self.location}"
        self._path = "" if urlsplit(url).path.strip("/") else "/metrics"

    def poll(self) -> Metrics:
        """Ask for the metrics."""
        return Metrics.scrape(self.url, self._path)

    def close(self) -> None:
        """Every poll has a connection of its own."""
