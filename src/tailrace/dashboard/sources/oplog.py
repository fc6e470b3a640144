"""The oplogs of all shards, and the position of every stream in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tailrace.monitor import Consumer, LagLimits, Observer, Report, Thresholds, shard_readers
from tailrace.settings import Settings

_SECONDS_TO_CONNECT = 3.0


class OplogSource:
    """Takes one reading of every shard; the observer it keeps sees the trends."""

    name = "mongodb"

    def __init__(self, settings: Settings, consumers: Callable[[], Sequence[Consumer]]) -> None:
        self._uri = settings.mongodb.uri.get_secret_value()
        self._timeout = min(_SECONDS_TO_CONNECT, settings.mongodb.timeout_seconds)
        self._monitor = settings.monitor
        self._mongodb = settings.mongodb
        self._consumers = consumers
        self._opened = ExitStack()
        self._observer: Observer | None = None

    def poll(self) -> list[Report]:
        """Read the ends of the oplogs and judge every stream; the numbers go to the metrics too."""
        if self._observer is None:
            family, hours = self._mongodb.family, self._mongodb.retention_hours
            readers = self._opened.enter_context(shard_readers([self._uri], self._timeout, family, hours))
            self._observer = Observer(
                readers,
                self._consumers,
                thresholds=Thresholds.of(self._monitor),
                limits=LagLimits.of(self._monitor),
            )
        return self._observer.poll()

    def close(self) -> None:
        """Give the connections back."""
        self._observer = None
        self._opened.close()
