"""A real sharded cluster without a router process: a config server, shards, and the part of a router that tests need.

No registry carries `mongos`, so this class sends the commands that `mongos` sends: to the config server for the
catalogue, to the shards for documents. Like a router it keeps the nodes' logical clocks together and attaches the
shard version to each write, so that a shard knows the shard key and logs it in `documentKey`; a write without a
version logs `_id` alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bson import Timestamp
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from tailrace.errors import StandError
from tailrace.owned.closeable import Closeable
from tailrace.server_codes import STALE_VERSIONS
from tailrace.stand.catalogue import Catalogue, catalogue_for
from tailrace.stand.mongod_binary import DEFAULT_VERSION
from tailrace.stand.node import Access, Credentials, Document
from tailrace.stand.replica_set import ReplicaSet

MAJORITY = {"w": "majority"}
_TRIES = 5


class ShardedCluster(Closeable):
    """A config server and shards, each a replica set, and the documents in them."""

    def __init__(
        self, version: str, folder: Path | None, shard_options: Mapping[str, Any], access: Access | None = None
    ) -> None:
        self.version = version
        self._access = access
        self._folder = folder
        self._shard_options = dict(shard_options)
        self._running = ExitStack()
        self._shard_numbers = itertools.count()
        self.shards: dict[str, ReplicaSet] = {}
        self._clients: dict[str, MongoClient[Document]] = {}
        self._sessions: dict[str, ClientSession] = {}
        self.config = self._start_replica_set("cfg", "configsvr")
        self._catalogue: Catalogue = catalogue_for(self)

    @classmethod
    def start(
        cls,
        version: str = DEFAULT_VERSION,
        *,
        shards: int = 2,
        nodes: int = 1,
        parameters: Mapping[str, object] | None = None,
        oplog_mb: int = 990,
        auth: bool = False,
        folder: Path | None = None,
    ) -> ShardedCluster:
        """Start a config server and add shards `s0`, `s1`, ..., each of so many nodes.

        `parameters` go to every shard; `{"periodicNoopIntervalSecs": 1}` makes idle shards move on every second,
        `{"writePeriodicNoops": False}` makes them stand still. `auth` makes a key file and a root user that all have
        in common; that user may send what only servers send each other, since it stands for a router here.
        """
        options = {"nodes": nodes, "parameters": parameters or {}, "oplog_mb": oplog_mb}
        cluster = cls(version, folder, options, Access.make("__system") if auth else None)
        try:
            for _ in range(shards):
                cluster.add_shard()
        except BaseException:
            cluster.close()
            raise
        return cluster

    def close(self) -> None:
        """End every process."""
        self._running.close()

    def add_shard(self) -> str:
        """Start one more shard, add it to the cluster and return its name."""
        name = f"s{next(self._shard_numbers)}"
        shard = self._start_replica_set(name, "shardsvr", **self._shard_options)
        self.shards[name] = shard
        self.run_on_config({"_configsvrAddShard": f"{name}/{shard.nodes[0].address}"})
        return name

    def add_user(self, user: str, password: str, roles: Sequence[object]) -> Credentials:
        """Make a user of the cluster, on its config server, and the same one on each shard."""
        for part in (self.config, *self.shards.values()):
            made = part.add_user(user, password, roles)
        return made

    def create_database(self, name: str, primary: str = "s0") -> None:
        """Make a database whose unsharded collections live on `primary`."""
        self._catalogue.create_database(name, primary)

    def shard_collection(self, namespace: str, key: Mapping[str, object]) -> None:
        """Shard an empty or missing collection; all of it starts on the database's primary shard, in one range."""
        self._catalogue.shard_collection(namespace, dict(key))

    def move_range(self, namespace: str, to: str, *, min: Document, max: Document) -> None:
        """Move the documents with `min` <= shard key < `max` to another shard."""
        self._catalogue.move_range(namespace, to, min, max)

    def owner_of(self, namespace: str, key: Document) -> str:
        """The shard that owns this shard key value."""
        return self._catalogue.owner_of(namespace, key)

    def insert(self, namespace: str, document: Document, *, shard: str | None = None) -> None:
        """Insert a document on the shard that owns it; a hashed key cannot be routed by, so `shard` must name it."""
        self._write(namespace, document, {"insert": None, "documents": [document]}, shard)

    def update(self, namespace: str, query: Document, update: Document | list[Document]) -> None:
        """Update one document; the query must hold the shard key."""
        self._write(namespace, query, {"update": None, "updates": [{"q": query, "u": update}]}, None)

    def delete(self, namespace: str, query: Document, *, shard: str | None = None) -> None:
        """Delete one document; the query must hold the shard key."""
        self._write(namespace, query, {"delete": None, "deletes": [{"q": query, "limit": 1}]}, shard)

    def shard_client(self, name: str) -> MongoClient[Document]:
        """The cluster's own client of a shard; it is closed with the cluster."""
        return self._clients[name]

    def run_on_config(self, command: Document) -> Document:
        """Run a command on the config server, majority-committed."""
        return self.run_on("cfg", {**command, "writeConcern": MAJORITY})

    def run_on(self, name: str, command: Document, database: str = "admin") -> Document:
        """Run a command on a shard (or "cfg"), with the newest cluster time of any node."""
        session = self._sessions[name]
        for other in tuple(self._sessions.values()):
            if other.cluster_time:
                session.advance_cluster_time(other.cluster_time)
            if other.operation_time:
                session.advance_operation_time(other.operation_time)
        return dict(self._clients[name][database].command(command, session=session))

    @property
    def cluster_time(self) -> Timestamp:
        """The newest cluster time that any node has sent."""
        times = [session.cluster_time["clusterTime"] for session in self._sessions.values() if session.cluster_time]
        newest: Timestamp = max(times)
        return newest

    def run_versioned(self, namespace: str, shard: str, command: Callable[[], Document]) -> Document:
        """Run a command with the shard's version attached, and again when the shard says that it is stale."""
        database, collection = namespace.split(".", 1)
        for _ in range(_TRIES):
            try:
                reply = self.run_on(
                    shard, {**command(), "shardVersion": self._catalogue.shard_version(namespace, shard)}, database
                )
                error = (reply.get("writeErrors") or [None])[0]
                if error is None:
                    return reply
                if error["code"] not in STALE_VERSIONS:
                    raise StandError(f"{namespace} on {shard}: {error['errmsg']}")
            except OperationFailure as failure:
                if failure.code not in STALE_VERSIONS:
                    raise
            self.run_on(shard, {"_flushRoutingTableCacheUpdates": namespace, "syncFromConfig": True})
        raise StandError(f"shard {shard} stayed stale for {namespace}/{collection}")

    def _write(self, namespace: str, keyed: Document, command: Document, shard: str | None) -> None:
        collection = namespace.split(".", 1)[1]
        (verb, _), *rest = command.items()
        body = {verb: collection, **dict(rest), "writeConcern": MAJORITY}
        key = self._catalogue.shard_key_of(namespace, keyed)
        self.run_versioned(namespace, shard or self.owner_of(namespace, key), lambda: body)

    def _start_replica_set(self, name: str, role: str, **options: Any) -> ReplicaSet:
        replica_set = self._running.enter_context(
            ReplicaSet.start(
                self.version, name=name, role=role, folder=self._folder, auth=self._access or False, **options
            )
        )
        client = self._running.enter_context(replica_set.client())
        self._clients[name] = client
        self._sessions[name] = self._running.enter_context(client.start_session(causal_consistency=True))
        return replica_set
