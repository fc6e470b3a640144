"""What the line stands on: a replica set, or a sharded cluster; each with its writers and its own word on the truth."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bson import MaxKey, MinKey, Timestamp

from nemesis.validators import Event, server_stream
from nemesis.writers import COLLECTIONS, ReplicaSetWriter, ShardedWriter, Writer
from tailrace.stand import ReplicaSet, ShardedCluster

WRITERS = 2
_MARKED = (("s0", "a"), ("s1", "z"))
"""The first letter of marks on each shard; the ranges of these letters never move."""
_MARKED_LATER = (("s2", "y"),)
"""The same for shards that are added in the middle of a run."""
_RANGES: tuple[tuple[Any, Any, str], ...] = (
    (MinKey(), 20_000, "s0"),
    (20_000, "", "s1"),
    ("", "m", "s0"),
    ("m", {}, "s1"),
    ({}, MaxKey(), "s1"),
)
"""How each collection is cut by `_id`, and where each range begins."""
MOVABLE = (_RANGES[0][:2], _RANGES[1][:2], _RANGES[4][:2])


class Deployment(ABC):
    """MongoDB as one run sees it."""

    name: str
    version: str
    uri: str
    """What the product is given."""
    sources: tuple[str, ...]
    """Ways in which a producer can read it."""
    replica_sets: Sequence[ReplicaSet]
    """Those that hold documents; faults strike their nodes."""

    @property
    def store_uri(self) -> str:
        """Where a position store may be kept."""
        return self.replica_sets[0].uri

    @property
    def nodes(self) -> list[Any]:
        """The nodes of all replica sets."""
        return [node for replica_set in self.replica_sets for node in replica_set.nodes]

    @abstractmethod
    def prepare(self, database: str) -> None:
        """Make the collections of a run."""

    @abstractmethod
    def writers(self, database: str, seed: int, pause: float) -> list[Writer]:
        """Writers that have not begun."""

    @abstractmethod
    def mark(self, database: str, name: str) -> str:
        """Insert a document that says where a stretch begins or ends, as the newest of all; give its `_id`."""

    @abstractmethod
    def time_after(self, database: str, key: str) -> Timestamp:
        """Give a cluster time that is not before that of a mark, and before that of every later write."""

    @abstractmethod
    def truth(self, database: str, start: Timestamp, last: str) -> list[Event]:
        """The server's own events from a time to the mark `last`, in the order of the cluster."""


class ReplicaSetDeployment(Deployment):
    """A replica set of three nodes."""

    name = "replica set"
    sources = ("change-stream", "oplog")

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._set = running.enter_context(ReplicaSet.start(nodes=3, folder=folder / "mongodb"))
        self.version, self.uri, self.replica_sets = self._set.version, self._set.uri, (self._set,)

    def prepare(self, database: str) -> None:
        """Writes make the collections."""

    def writers(self, database: str, seed: int, pause: float) -> list[Writer]:
        """Two that write to the primary."""
        return [ReplicaSetWriter(self.uri, database, number, seed, pause) for number in range(1, WRITERS + 1)]

    def mark(self, database: str, name: str) -> str:
        """Write it to the primary."""
        key = f"{name} {time.time_ns()}"
        with self._set.client(w="majority") as client:
            client[database].orders.replace_one({"_id": key}, {"op": name}, upsert=True)
        return key

    def time_after(self, database: str, key: str) -> Timestamp:
        """The operation time of a read of the mark."""
        with self._set.client() as client, client.start_session() as session:
            client[database].orders.find_one({"_id": key}, session=session)
            assert session.operation_time is not None
            return session.operation_time

    def truth(self, database: str, start: Timestamp, last: str) -> list[Event]:
        """The set's own change stream."""
        return server_stream(self.uri, database, start, last)


class ShardedDeployment(Deployment):
    """Two shards of three nodes each and a config server; writes go as a router would send them."""

    name = "sharded cluster"
    sources = ("oplog",)

    def __init__(self, folder: Path, running: ExitStack) -> None:
        # Ranges move to and fro: one that comes back must not wait for the cleaning of what it left.
        parameters = {"orphanCleanupDelaySecs": 0, "periodicNoopIntervalSecs": 1}
        self.cluster = running.enter_context(
            ShardedCluster.start(shards=len(_MARKED), nodes=3, parameters=parameters, folder=folder / "sharded")
        )
        self.version, self.uri = self.cluster.version, self.cluster.config.uri
        self.replica_sets = tuple(self.cluster.shards.values())
        self._marked = list(_MARKED)

    def prepare(self, database: str) -> None:
        """Shard each collection by `_id`, with ranges on both shards."""
        self.cluster.create_database(database)
        for collection in COLLECTIONS:
            namespace = f"{database}.{collection}"
            self.cluster.shard_collection(namespace, {"_id": 1})
            for lower, upper, shard in _RANGES:
                if shard != "s0":
                    self.cluster.move_range(namespace, shard, min={"_id": lower}, max={"_id": upper})
        for shard, letter in self._marked[1:-1]:
            self._give_letter(database, shard, letter)

    def grow(self, database: str) -> str | None:
        """Add a shard, if there are not enough, and give it a range; gives its name. For the writer's thread alone."""
        added = len(self._marked) - len(_MARKED)
        if added == len(_MARKED_LATER):
            return None
        name, letter = _MARKED_LATER[added]
        assert self.cluster.add_shard() == name
        self._give_letter(database, name, letter)
        self._marked.insert(-1, (name, letter))  # the last mark stays the last
        self.replica_sets = tuple(self.cluster.shards.values())
        return name

    def _give_letter(self, database: str, shard: str, letter: str) -> None:
        for collection in COLLECTIONS:
            following = chr(ord(letter) + 1)
            self.cluster.move_range(f"{database}.{collection}", shard, min={"_id": letter}, max={"_id": following})

    def writers(self, database: str, seed: int, pause: float) -> list[Writer]:
        """One: a router's sessions belong to one thread."""
        return [ShardedWriter(self.cluster, database, seed, pause, MOVABLE, lambda: self.grow(database))]

    def mark(self, database: str, name: str) -> str:
        """Write one to each shard; the last one is the newest of all."""
        number = time.time_ns()
        for shard, letter in self._marked:
            key = f"{letter} {name} {number}"
            self.cluster.insert(f"{database}.orders", {"_id": key, "op": name}, shard=shard)
        return key

    def time_after(self, database: str, key: str) -> Timestamp:
        """The newest time that any node has told."""
        return self.cluster.cluster_time

    def truth(self, database: str, start: Timestamp, last: str) -> list[Event]:
        """The own streams of the shards, each up to its own mark, in the order of their tokens."""
        events: list[Event] = []
        for shard, letter in self._marked:
            events += server_stream(self.cluster.shards[shard].uri, database, start, letter + last[1:])
        return sorted(events, key=lambda event: (event.time, event.token))
