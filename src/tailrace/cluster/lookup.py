"""The documents of `updateLookup` in a cluster: found where they are now, as mongos finds them.

The shard that logged an update may have given the document away since, and may even still have a copy that it does
not own any more. So the shard is asked that owns the shard key, with its shard version: it refuses when it knows
better who owns what. When the key does not decide, all are asked, and each leaves out what it does not own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bson.binary import Binary
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tailrace import server_codes
from tailrace.cluster.placement import Placement, Placements
from tailrace.engine.images import ImageStore
from tailrace.engine.live import first_document
from tailrace.engine.scope import split_namespace
from tailrace.errors import ServerUnreachable
from tailrace.oplog.tail import is_passing
from tailrace.raw.cluster_time import ClusterTime
from tailrace.retry import RetryPolicy, retried

_RAW: Final[CodecOptions[RawBSONDocument]] = CodecOptions(RawBSONDocument)
_POLICY: Final = RetryPolicy(first=0.05, longest=0.5, budget=60.0)

Client = Callable[[str], MongoClient[Any]]
"""Gives the client of a shard."""


class ShardedImages:
    """Images for the events of one shard: before the change from that shard, after it from whichever has it."""

    def __init__(self, own: str, stored: ImageStore, placements: Placements, client: Client) -> None:
        self._own = own
        self._stored = stored
        self._placements = placements
        self._client = client

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        """Read the pre-image, which is stored where the change was made."""
        return self._stored.pre_image(uuid, time, index)

    def shard_key(self, uuid: bytes) -> Sequence[bytes] | None:
        """Give a collection's shard key as the shard of the events knows it."""
        return self._stored.shard_key(uuid)

    def current_document(self, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        """Read the majority-committed document with this key from the shard that owns it."""

        def find() -> bytes | None:
            try:
                return self._find(self._placements.of(namespace.decode()), namespace, uuid, key, since)
            except OperationFailure as error:
                if error.code in server_codes.STALE_VERSIONS:
                    self._placements.forget(namespace.decode())
                raise

        return retried(
            find,
            _POLICY,
            is_passing=_may_succeed_later,
            spent=lambda error: ServerUnreachable(f"a document cannot be looked up: {error}"),
        )

    def _find(self, placed: Placement, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        if placed.is_sharded and uuid is not None and uuid != placed.uuid:
            return None  # another collection of that name
        database, collection = split_namespace(namespace)
        # Finding by UUID and shard versions do not go together; what is sharded is found by its name.
        by_uuid = uuid is not None and not placed.is_sharded
        find: dict[str, Any] = {"find": Binary(uuid, 4) if uuid and by_uuid else collection.decode()}
        find |= {"filter": RawBSONDocument(key), "limit": 1, "singleBatch": True}
        for shard in self._asked(placed, key):
            version = placed.versions.get(shard)
            command = {**find, "shardVersion": version} if placed.is_sharded else find
            found = self._first(shard, database.decode(), command, since)
            if found is not None:
                return found
        return None

    def _asked(self, placed: Placement, key: bytes) -> list[str]:
        """Name the shard that has a document, or all that may have it."""
        owner = self._placements.owner(placed, key) if placed.is_sharded else None
        if owner is None:
            # A database that the config servers do not know is no cluster's: only this shard can have it.
            return sorted(placed.versions, key=lambda name: name != self._own) or [self._own]
        if owner not in placed.versions:
            raise OperationFailure(f"shard {owner} has a range since a moment ago", server_codes.STALE_CONFIG)
        return [owner]

    def _first(self, shard: str, database: str, command: dict[str, Any], since: int) -> bytes | None:
        """Ask a shard, once it has come to the time of the change; any other than the event's own is sent that time."""
        client = self._client(shard)
        concern = {"level": "majority", "afterClusterTime": ClusterTime(since).timestamp}
        with client.start_session(causal_consistency=False) as session:
            if shard != self._own:
                session.advance_cluster_time(self._client(self._own).admin.command("ping")["$clusterTime"])
            asked = {**command, "readConcern": concern}
            return first_document(lambda: client[database].command(asked, codec_options=_RAW, session=session))


def _may_succeed_later(error: Exception) -> bool:
    if isinstance(error, OperationFailure) and error.code in server_codes.STALE_VERSIONS:
        return True
    return isinstance(error, PyMongoError) and is_passing(error)
