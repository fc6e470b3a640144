"""Events that no server sends: a document of a snapshot, and a delete or a rename that recovery found.

They are shaped like change events, so that formats and sinks need to know one shape only.

A documentKey, seen alike on 4.2 and 6.0, holds the fields of the shard key in their order, each under its whole dotted
name, without those that the document has not; then `_id`, unless the shard key holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import bson
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tailrace import raw, server_codes
from tailrace.engine.transform import document_key
from tailrace.errors import SettingsError


@dataclass(frozen=True, slots=True)
class KeyFields:
    """The fields of a collection's documentKey, by their dotted names."""

    names: tuple[bytes, ...] = (b"_id",)

    @classmethod
    def of_shard_key(cls, names: list[str]) -> KeyFields:
        """Give the fields of a collection with this shard key."""
        fields = tuple(name.encode() for name in names)
        return cls(fields if b"_id" in fields else (*fields, b"_id"))

    @property
    def projection(self) -> dict[str, int]:
        """What to ask of a query that wants the keys alone."""
        return {"_id": 1} | {name.decode(): 1 for name in self.names}

    def of(self, document: bytes) -> bytes:
        """Give the documentKey of a document."""
        return document_key(document, self.names)


BY_ID = KeyFields()
"""Those of every collection that is not sharded."""


def key_fields(client: MongoClient[Any], namespace: str) -> KeyFields:
    """Find out how a collection is keyed now: a router asks the catalogue, a shard has a copy of it."""
    router = client.admin.command("isMaster").get("msg") == "isdbgrid"
    catalogue = client["config"]["collections" if router else "cache.collections"]
    try:
        found = catalogue.find_one({"_id": namespace, "dropped": {"$ne": True}}, {"key": 1})
    except OperationFailure as error:
        if error.code != server_codes.UNAUTHORIZED:
            raise
        if router:
            hint = "Give the user the role `read` on the database `config`."
            raise SettingsError(f"the shard key of {namespace} may not be read", hint=hint) from None
        return BY_ID  # a replica set of its own, whose users need not see what only shards have
    return BY_ID if found is None else KeyFields.of_shard_key(list(found["key"]))


READ = "read"
"""operationType of a document of a snapshot; its record is marked `op: "r"`."""


def snapshot_event(
    namespace: str, document: bytes, token: bytes, cluster_time: Timestamp, fields: KeyFields = BY_ID
) -> bytes:
    """Make the event of a document that a snapshot read.

    `token` and `cluster_time` are those of a position before the read: the document holds every change up to there,
    so a consumer that takes the cluster time as version never lets it win over a newer event. `fields` are those that
    the server's own events of the collection have in their documentKey.
    """
    head, ns = _frame(namespace, token, cluster_time)
    return raw.document(
        head,
        raw.element(raw.DOCUMENT, b"fullDocument", document),
        ns,
        raw.element(raw.DOCUMENT, b"documentKey", fields.of(document)),
    )


def recovered_delete(namespace: str, key: bytes, token: bytes, cluster_time: Timestamp) -> bytes:
    """Make the event of a delete that happened in a gap and was found by comparing keys."""
    return _recovered("delete", namespace, raw.element(raw.DOCUMENT, b"documentKey", key), token, cluster_time)


def recovered_rename(namespace: str, to: str, token: bytes, cluster_time: Timestamp) -> bytes:
    """Make the event of a rename that happened in a gap and was found by the UUID of the collection."""
    return _recovered("rename", namespace, _namespace(to, b"to"), token, cluster_time)


def _recovered(operation: str, namespace: str, what: bytes, token: bytes, cluster_time: Timestamp) -> bytes:
    return raw.document(
        raw.element(raw.DOCUMENT, b"_id", token),
        raw.element(raw.STRING, b"operationType", raw.string(operation)),
        raw.element(raw.TIMESTAMP, b"clusterTime", raw.timestamp(cluster_time)),
        _namespace(namespace),
        what,
        raw.element(raw.BOOL, b"recovered", raw.boolean(True)),
    )


@lru_cache(maxsize=256)
def _frame(namespace: str, token: bytes, cluster_time: Timestamp) -> tuple[bytes, bytes]:
    """Make what all documents of a chunk have in common: the fields before the document, and its namespace."""
    head = (
        raw.element(raw.DOCUMENT, b"_id", token),
        raw.element(raw.STRING, b"op", raw.string("r")),
        raw.element(raw.STRING, b"operationType", raw.string(READ)),
        raw.element(raw.TIMESTAMP, b"clusterTime", raw.timestamp(cluster_time)),
    )
    return b"".join(head), _namespace(namespace)


def _namespace(namespace: str, field: bytes = b"ns") -> bytes:
    database, _, collection = namespace.partition(".")
    return raw.element(raw.DOCUMENT, field, bson.encode({"db": database, "coll": collection}))
