"""A producer's own endpoint: its state and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tailrace.dashboard.sources.metrics_text import Metrics
from tailrace.errors import ServerUnreachable
from tailrace.http_client import addresses_of, fetch, first_that, location_of


@dataclass(frozen=True, slots=True)
class ProducerReading:
    """What a producer says of itself."""

    location: str
    state: dict[str, Any]
    metrics: Metrics

    @property
    def is_standby(self) -> bool:
        """Whether it only waits for the lease of another one."""
        return self.state.get("standby") is True


class ProducerSource:
    """Asks one producer; of a name with several addresses, such as a headless Service, the one that is no standby."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.location = location_of(url)
        self.name = f"producer {self.location}"

    def poll(self) -> ProducerReading:
        """Ask for the state and the metrics."""
        address, state = first_that(addresses_of(self.url), self._state_at, lambda state: not state.get("standby"))
        return ProducerReading(self.location, state, Metrics.scrape(self.url, address=address))

    def _state_at(self, address: str) -> dict[str, Any]:
        answer = fetch(self.url, "/state", address=address)
        if answer.status != 200:
            raise ServerUnreachable(f"{self.location} is no producer: /state is answered with HTTP {answer.status}")
        state: dict[str, Any] = answer.json()
        return state

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
