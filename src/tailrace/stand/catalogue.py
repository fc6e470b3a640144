"""What a router asks of the config server: databases, sharded collections, ranges and versions.

The commands differ between releases; each class here is the dialect of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from bson import Timestamp
from bson.son import SON
from pymongo.database import Database

from tailrace.errors import StandError
from tailrace.stand.node import Document

if TYPE_CHECKING:
    from tailrace.stand.sharded_cluster import ShardedCluster


def catalogue_for(cluster: ShardedCluster) -> Catalogue:
    """The catalogue in the dialect of the cluster's release."""
    release = cluster.config.release
    if release in ((6, 0), (7, 0)):
        return CatalogueOf60(cluster)
    if release == (4, 2):
        return CatalogueOf42(cluster)
    raise StandError(f"no sharded cluster of release {release[0]}.{release[1]}", hint="Use 7.0, 6.0 or 4.2.")


class Catalogue(ABC):
    """The config server's collections, and the commands that change them."""

    def __init__(self, cluster: ShardedCluster) -> None:
        self._cluster = cluster

    @abstractmethod
    def create_database(self, name: str, primary: str) -> None:
        """Make a database on a primary shard."""

    @abstractmethod
    def shard_collection(self, namespace: str, key: Document) -> None:
        """Shard a collection."""

    @abstractmethod
    def move_range(self, namespace: str, to: str, lower: Document, upper: Document) -> None:
        """Move a range of documents to a shard."""

    @abstractmethod
    def shard_version(self, namespace: str, shard: str) -> Any:
        """The version that a write to this shard must carry."""

    @abstractmethod
    def chunk_filter(self, namespace: str) -> Document:
        """What selects the collection's ranges in `config.chunks`."""

    def owner_of(self, namespace: str, key: Document) -> str:
        """The shard that owns a shard key value; the server compares the bounds, in its own order."""
        bounds = {"min": {"$lte": key}, "max": {"$gt": key}}
        chunk = self._config["chunks"].find_one({**self.chunk_filter(namespace), **bounds})
        if chunk is None:
            raise StandError(f"{namespace} has no range with {key}", hint="Shard the collection first.")
        return str(chunk["shard"])

    def shard_key_of(self, namespace: str, document: Document) -> Document:
        """The shard key values of a document or query; a hashed key stays unhashed and cannot be routed by."""
        return {path: _at_path(document, path) for path in self.collection(namespace)["key"]}

    def collection(self, namespace: str) -> Document:
        """The collection's entry in `config.collections`."""
        return self._one("collections", {"_id": namespace})

    def newest_chunk(self, namespace: str, shard: str | None = None) -> Document | None:
        """The range with the greatest version, on one shard or anywhere."""
        query = self.chunk_filter(namespace) | ({"shard": shard} if shard else {})
        return self._config["chunks"].find_one(query, sort=[("lastmod", -1)])

    def _one(self, collection: str, query: Document) -> Document:
        found = self._config[collection].find_one(query)
        if found is None:
            raise StandError(f"config.{collection} has no {query}", hint="Create and shard the collection first.")
        return found

    @property
    def _config(self) -> Database[Document]:
        return self._cluster.shard_client("cfg")["config"]


class CatalogueOf60(Catalogue):
    """MongoDB 6.0 and 7.0: ranges by collection UUID, versions with epoch and timestamp, moves that split alone."""

    def create_database(self, name: str, primary: str) -> None:
        """Make a database on a primary shard."""
        self._cluster.run_on_config({"_configsvrCreateDatabase": name, "primaryShardId": primary})

    def shard_collection(self, namespace: str, key: Document) -> None:
        """Shard a collection through its database's primary shard."""
        database, collection = namespace.split(".", 1)
        entry = self._one("databases", {"_id": database})
        command = {"_shardsvrCreateCollection": collection, "shardKey": key, "unique": False}
        version = {"databaseVersion": entry["version"], "writeConcern": {"w": "majority"}}
        self._cluster.run_on(entry["primary"], {**command, **version}, database)

    def move_range(self, namespace: str, to: str, lower: Document, upper: Document) -> None:
        """Move a range; the config server splits it off by itself."""
        self._cluster.run_on_config({"_configsvrMoveRange": namespace, "toShard": to, "min": lower, "max": upper})

    def shard_version(self, namespace: str, shard: str) -> Any:
        """Epoch, timestamp, and the greatest version of the shard's ranges (0|0 when it has none)."""
        entry = self.collection(namespace)
        newest = self.newest_chunk(namespace, shard)
        version = newest["lastmod"] if newest else Timestamp(0, 0)
        return SON([("e", entry["lastmodEpoch"]), ("t", entry["timestamp"]), ("v", version)])

    def chunk_filter(self, namespace: str) -> Document:
        """Ranges are kept by the collection's UUID."""
        return {"uuid": self.collection(namespace)["uuid"]}


class CatalogueOf42(Catalogue):
    """MongoDB 4.2: ranges by namespace, versions with an epoch, and ranges that must be split before they move."""

    _MAX_CHUNK_BYTES = 64 << 20

    def create_database(self, name: str, primary: str) -> None:
        """Make a database; 4.2 chooses the primary shard itself, so another choice is moved there while empty."""
        self._cluster.run_on_config({"_configsvrCreateDatabase": name})
        self._cluster.run_on_config({"_configsvrEnableSharding": name})
        if self._one("databases", {"_id": name})["primary"] != primary:
            self._cluster.run_on_config({"_configsvrMovePrimary": name, "to": primary})

    def shard_collection(self, namespace: str, key: Document) -> None:
        """Shard a collection through the config server."""
        self._cluster.run_on_config({"_configsvrShardCollection": namespace, "key": key})

    def move_range(self, namespace: str, to: str, lower: Document, upper: Document) -> None:
        """Split the range off at its bounds, then move it."""
        for bound in (lower, upper):
            self._split_at(namespace, bound)
        chunk = self._one("chunks", {"ns": namespace, "min": lower})
        del chunk["_id"]  # an encoder puts `_id` first, where the command's name belongs
        command = {"_configsvrMoveChunk": 1, **chunk, "toShard": to, "maxChunkSizeBytes": self._MAX_CHUNK_BYTES}
        self._cluster.run_on_config({**command, "secondaryThrottle": {}, "waitForDelete": True})

    def shard_version(self, namespace: str, shard: str) -> Any:
        """The greatest version of the shard's ranges (0|0 when it has none) and the collection's epoch."""
        newest = self.newest_chunk(namespace, shard)
        return [newest["lastmod"] if newest else Timestamp(0, 0), self.collection(namespace)["lastmodEpoch"]]

    def chunk_filter(self, namespace: str) -> Document:
        """Ranges are kept by namespace."""
        return {"ns": namespace}

    def _split_at(self, namespace: str, bound: Document) -> None:
        inside = {"ns": namespace, "min": {"$lt": bound}, "max": {"$gt": bound}}
        chunk = self._config["chunks"].find_one(inside)
        if chunk is None:
            return
        newest = self.newest_chunk(namespace) or chunk
        epoch = self.collection(namespace)["lastmodEpoch"]
        command = {
            "splitChunk": namespace,
            "from": chunk["shard"],
            "keyPattern": self.collection(namespace)["key"],
            "epoch": epoch,
            "shardVersion": [newest["lastmod"], epoch],
            "min": chunk["min"],
            "max": chunk["max"],
            "splitKeys": [bound],
        }
        self._cluster.run_on(chunk["shard"], command)


def _at_path(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document
