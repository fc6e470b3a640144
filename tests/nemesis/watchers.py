"""Applications that watch through the gateway with a stock driver, and go on from their last token whatever happens."""

from __future__ import annotations

import threading
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from nemesis.validators import Event, read_event
from tailrace.owned import OwnedThread

_OPTIONS: dict[str, Any] = {
    "document_class": RawBSONDocument,
    "serverSelectionTimeoutMS": 2_000,
    "connectTimeoutMS": 2_000,
    "socketTimeoutMS": 4_000,
    "heartbeatFrequencyMS": 500,
}


class Watcher:
    """Reads one database, or one collection of it, and keeps every event in the order it came."""

    def __init__(self, uri: str, database: str, collection: str | None, start: Any) -> None:
        self.name = f"watcher of {collection or 'all'}"
        self.collection = collection
        self.events: list[Event] = []
        self.errors: list[str] = []
        self._client: MongoClient[Any] = MongoClient(uri, **_OPTIONS)
        target = self._client[database]
        self._target: Any = target[collection] if collection else target
        self._start = start
        self._token: Any = None
        self._stopping = threading.Event()
        self._thread = OwnedThread(self._run, name=self.name)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        assert self._thread.join(60), f"the {self.name} does not end"
        assert self._thread.error is None, f"the {self.name} died: {self._thread.error!r}"
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read()
            except PyMongoError as error:
                self.errors.append(str(error)[:300])
                self._stopping.wait(0.1)

    def _read(self) -> None:
        start = {"resume_after": self._token} if self._token else {"start_at_operation_time": self._start}
        with self._target.watch(max_await_time_ms=200, **start) as stream:
            while not self._stopping.is_set():
                raw = stream.try_next()
                if raw is not None:
                    event = read_event(bson.decode(raw.raw))
                    if event:
                        self.events.append(event)
                self._token = stream.resume_token or self._token
