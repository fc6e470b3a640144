"""A real sharded cluster with documents that count up, so that every event says which one of its document it is."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bson import MaxKey

from tailrace.stand import ShardedCluster
from waiting import SECONDS

KEYS = 18
SHARDS = 3


class Counters:
    """Documents 0 to 17 of one collection, a third of them on each shard; writes may come from one thread only."""

    def __init__(self, cluster: ShardedCluster, database: str) -> None:
        self._cluster = cluster
        self.namespace = f"{database}.counters"
        self.counts = [-1] * KEYS
        self._chance = random.Random(database)
        cluster.create_database(database)
        cluster.shard_collection(self.namespace, {"_id": 1})
        for number in range(1, SHARDS):
            upper: Any = (number + 1) * KEYS // SHARDS if number + 1 < SHARDS else MaxKey()
            cluster.move_range(self.namespace, f"s{number}", min={"_id": number * KEYS // SHARDS}, max={"_id": upper})

    def insert(self) -> None:
        """Make every document."""
        for key in range(KEYS):
            self.counts[key] = 0
            self._cluster.insert(self.namespace, {"_id": key, "n": 0})

    def count(self, times: int = 1, *, keys: range = range(KEYS)) -> None:
        """Count up in documents chosen at random."""
        for _ in range(times):
            key = self._chance.choice(keys)
            self.counts[key] += 1
            self._cluster.update(self.namespace, {"_id": key}, {"_id": key, "n": self.counts[key]})

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count up in a thread as long as the block runs."""
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                self.count()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(SECONDS)
