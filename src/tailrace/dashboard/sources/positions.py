"""The position store: where every stream stands, who writes it, and the ledger of gaps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tailrace.capture.positions import Position, PositionStore, open_store
from tailrace.capture.recovery.gaps import Gap, GapLedger, consumer_of
from tailrace.monitor import Consumer


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream as the store shows it."""

    consumer: Consumer
    position: Position
    writer: str | None
    """Who holds the lease now."""


@dataclass(frozen=True, slots=True)
class PositionsReading:
    """Everything that a store knows."""

    streams: list[StoredStream]
    gaps: list[Gap]


class PositionsSource:
    """Reads one store."""

    name = "positions"

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: PositionStore | None = None

    def poll(self) -> PositionsReading:
        """Read all names; a folder that is not there yet has none, and is not made by looking."""
        if self._store is None:
            if self._url.startswith("file:") and not _folder_of(self._url).is_dir():
                return PositionsReading([], [])
            self._store = open_store(self._url)
        store = self._store
        gaps = [gap for name in GapLedger.streams(store.cells) for gap in GapLedger(store.cells, name).all()]
        return PositionsReading([stream for name in store.names() if (stream := _stream(store, name))], gaps)

    def close(self) -> None:
        """Give the connection back."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _stream(store: PositionStore, name: str) -> StoredStream | None:
    position = store.load(name)
    if position is None:
        return None
    lease = store.holder(name)
    return StoredStream(consumer_of(store, name), position, lease.owner if lease else None)


def _folder_of(url: str) -> Path:
    return Path(unquote(url.removeprefix("file:").removeprefix("//")))
