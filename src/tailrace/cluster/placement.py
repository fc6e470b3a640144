"""Where the documents of a collection are, as the config servers know it.

A hashed shard key stands for a number: the first half of an MD5 over the value's type and bytes. Numbers of all types
count as 64-bit integers, so that 1 and 1.0 are on one shard; the same function makes the entries of hashed indexes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, Final

from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.raw.decimals import to_decimal


@dataclass(frozen=True, slots=True)
class Placement:
    """The shards that own a part of a collection, each with the version that commands to it carry."""

    uuid: bytes | None
    """The collection's; None when it is not sharded, and its database's primary shard has all of it."""
    versions: Mapping[str, Any]
    key: Mapping[str, Any] = field(default_factory=dict)
    """The shard key: fields, and 1, -1 or "hashed"."""
    ranges: Mapping[str, Any] = field(default_factory=dict)
    """What selects the collection's ranges in `config.chunks`."""

    @property
    def is_sharded(self) -> bool:
        """Whether ranges of it may be on several shards."""
        return self.uuid is not None


class Placements:
    """Asks the config servers, and remembers what they said of sharded collections.

    A shard refuses a version that is no longer right, so that what is remembered here does not have to be. For a
    collection that is not sharded nothing would be refused: it is asked for each time.
    """

    def __init__(self, config: MongoClient[Any], dialect: Dialect) -> None:
        self._config: Database[Any] = config.get_database("config", read_concern=ReadConcern("majority"))
        self._dialect = dialect
        self._lock = threading.Lock()
        self._known: dict[str, Placement] = {}

    def of(self, namespace: str) -> Placement:
        """Give the placement of a collection."""
        with self._lock:
            known = self._known.get(namespace)
        if known is None:
            known = self._ask(namespace)
            if known.is_sharded:
                with self._lock:
                    self._known[namespace] = known
        return known

    def owner(self, placed: Placement, document_key: bytes) -> str | None:
        """Name the shard that owns a document; None when its key does not decide, and each may have it.

        Servers compare the bounds. A shard that is asked for a whole shard key does not look whether it owns that:
        6.0.5 then gives what another shard owns now and it has not removed yet.
        """
        parts = []
        for name, how in placed.key.items():
            value = raw.field(document_key, name.encode())
            if value is None:
                return None
            if how == "hashed":
                value = raw.Value(raw.INT64, raw.int64(hash_of(value)))
            parts.append(raw.element(value.kind, name.encode(), value.data))
        key = RawBSONDocument(raw.document(*parts))
        around = {**placed.ranges, "min": {"$lte": key}, "max": {"$gt": key}}
        found = self._config.chunks.find_one(around, {"shard": 1})
        return None if found is None else str(found["shard"])

    def forget(self, namespace: str) -> None:
        """Ask again next time: a shard said that the version was not right."""
        with self._lock:
            self._known.pop(namespace, None)

    def _ask(self, namespace: str) -> Placement:
        entry = self._config.collections.find_one({"_id": namespace, "dropped": {"$ne": True}})
        if entry is None:
            database = self._config.databases.find_one({"_id": namespace.partition(".")[0]})
            return Placement(None, {} if database is None else {database["primary"]: None})
        ranges = {"uuid": entry["uuid"]} if "timestamp" in entry else {"ns": namespace}
        newest = {"$group": {"_id": "$shard", "version": {"$max": "$lastmod"}}}
        found = self._config.chunks.aggregate([{"$match": ranges}, newest])
        versions = {each["_id"]: self._version(entry, each["version"]) for each in found}
        return Placement(bytes(entry["uuid"]), versions, entry["key"], ranges)

    def _version(self, entry: Mapping[str, Any], newest: Timestamp) -> Any:
        """Give a shard version as the servers of this release write it."""
        if self._dialect.since(6, 0):
            return SON([("e", entry["lastmodEpoch"]), ("t", entry["timestamp"]), ("v", newest)])
        parts = [newest, entry["lastmodEpoch"]]
        return [*parts, entry["timestamp"]] if "timestamp" in entry else parts


_CANONICAL: Final = {
    raw.MIN_KEY: -1, raw.MAX_KEY: 127, raw.UNDEFINED: 0, raw.NULL: 5, raw.DOUBLE: 10, raw.INT32: 10, raw.INT64: 10,
    raw.DECIMAL128: 10, raw.STRING: 15, raw.SYMBOL: 15, raw.DOCUMENT: 20, raw.ARRAY: 25, raw.BINARY: 30,
    raw.OBJECT_ID: 35, raw.BOOL: 40, raw.DATE: 45, raw.TIMESTAMP: 47, raw.REGEX: 50, raw.DB_POINTER: 55, raw.CODE: 60,
    raw.CODE_WITH_SCOPE: 65,
}  # fmt: skip
_SEED: Final = raw.int32(0)
_END: Final = raw.int32(0)
"""How the end of an embedded document counts: as type 0, without a name."""
_LONGEST, _SHORTEST = 2**63 - 1, -(2**63)


def hash_of(value: raw.Value) -> int:
    """Hash a value as the server does for shard keys and indexes."""
    digest = md5(_SEED + _content(*value, None), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _content(kind: int, data: bytes, name: bytes | None) -> bytes:
    named = b"" if name is None else name + b"\x00"
    begin = raw.int32(_CANONICAL[kind]) + named
    if kind in (raw.DOCUMENT, raw.ARRAY):
        inner = (_content(kind, data[start:end], name) for kind, name, start, end in raw.elements(data))
        return begin + b"".join(inner) + _END
    if _CANONICAL[kind] == 10:
        return begin + raw.int64(_as_integer(raw.to_python(kind, data)))
    return begin + data


def _as_integer(number: Any) -> int:
    """Cut a number to 64 bits; what is no number counts as 0, what is too large as the largest."""
    value = to_decimal(number) if hasattr(number, "to_decimal") else number
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return _LONGEST if value > 0 else _SHORTEST
    return max(_SHORTEST, min(_LONGEST, int(value)))
