"""A gateway's metrics: its clients, its watchers and the shards it reads."""

from __future__ import annotations

from urllib.parse import urlsplit

from tailrace.dashboard.sources.fetching import place_of
from tailrace.dashboard.sources.metrics_text import Metrics


class GatewaySource:
    """Asks one gateway."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.place = place_of(url)
        self.name = f"gateway {self.place}"
        self._path = "" if urlsplit(url).path.strip("/") else "/metrics"

    def look(self) -> Metrics:
        """Ask for the metrics."""
        return Metrics.scrape(self.url, self._path)

    def close(self) -> None:
        """Every look has a connection of its own."""
