"""A writer whose every write can be told apart: numbered inserts and updates, one delete for a document."""

from __future__ import annotations

import random
import threading
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from nemesis.writers import CLIENT_OPTIONS
from tailrace.owned import OwnedThread


class NumberedWriter:
    """Writes to one collection without a pause, whatever happens to the servers; a failed write is not tried again."""

    def __init__(self, uri: str, database: str, seed: int, pause: float = 0.01) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri, **CLIENT_OPTIONS)
        self._orders = self._client[database].orders
        self._dice = random.Random(seed)
        self._pause = pause
        self._alive: list[str] = []
        self._stopping = threading.Event()
        self._thread = OwnedThread(self._run, name="writer")
        self.acknowledged = 0
        self.number = 0

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End after the write under way."""
        self._stopping.set()
        assert self._thread.join(60), "the writer does not end"
        assert self._thread.error is None, f"the writer died: {self._thread.error!r}"
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause):
            self.number += 1
            try:
                self._write()
                self.acknowledged += 1
            except PyMongoError:
                self._stopping.wait(0.05)

    def _write(self) -> None:
        kind = self._dice.random()
        if kind < 0.4 or not self._alive:
            key = f"k{self.number}"
            self._orders.insert_one({"_id": key, "write": self.number, "filler": "x" * 200})
            self._alive.append(key)
        elif kind < 0.85:
            self._orders.update_one({"_id": self._dice.choice(self._alive)}, {"$set": {"write": self.number}})
        else:
            key = self._alive.pop(self._dice.randrange(len(self._alive)))
            self._orders.delete_one({"_id": key})
