"""Everything that was observed at one moment, before anybody has judged it."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.dashboard.sources import Reading
from tailrace.dashboard.sources.features import FeaturesProgress
from tailrace.dashboard.sources.metrics_text import Metrics
from tailrace.dashboard.sources.positions import PositionsReading, StoredStream
from tailrace.dashboard.sources.producers import ProducerReading
from tailrace.dashboard.sources.topics import TopicsReading
from tailrace.dashboard.values import DeadLetters
from tailrace.monitor import Report
from tailrace.warehouse import TableState


@dataclass(frozen=True, slots=True)
class Observed:
    """The newest reading of every source; None where there is no such source."""

    now: float
    oplog: Reading[list[Report]]
    positions: Reading[PositionsReading]
    producers: dict[str, Reading[ProducerReading]]
    """By the location of the endpoint."""
    topics: Reading[TopicsReading] | None
    changes: Reading[int] | None
    features: Reading[list[FeaturesProgress]]
    tables: Reading[list[TableState]]
    gateways: dict[str, Reading[Metrics]]
    dead_letters: list[Reading[DeadLetters]]

    @property
    def reports(self) -> list[Report]:
        """The oplogs and the streams in them, if MongoDB answers."""
        return self.oplog.fresh or []

    @property
    def stored(self) -> dict[str, StoredStream]:
        """The streams of the position store by name."""
        value = self.positions.fresh
        return {} if value is None else {stream.consumer.stream: stream for stream in value.streams}

    @property
    def answering(self) -> list[ProducerReading]:
        """What the producers say that answer."""
        return [reading.fresh for reading in self.producers.values() if reading.fresh is not None]

    @property
    def newest_event(self) -> float | None:
        """When the newest event happened that is known of."""
        return None if self.topics is None or self.topics.value is None else self.topics.value.newest_at
