"""Read one chunk as of one cluster time, and find out which keys are gone as of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient, ReadPreference
from pymongo.command_cursor import CommandCursor
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from tailrace import raw
from tailrace.capture.formats.made_events import BY_ID, key_fields, recovered_delete, snapshot_event
from tailrace.capture.snapshot.chunk import RAW, Chunk, KeyCheck
from tailrace.policy import NO_POLICY, Policy
from tailrace.server_codes import SNAPSHOT_UNAVAILABLE
from tailrace.token import ResumeToken, keystring

_WIRE_VERSION_5_0 = 13


def watermark(client: MongoClient[Any]) -> Timestamp:
    """Give the newest cluster time; nothing is written to the source for it."""
    time: Timestamp = client.admin.command("ping")["operationTime"]
    return time


class ChunkReader:
    """Reads at an exact cluster time where the server can (5.0, but no capped collections), else no earlier than it.

    Read no earlier, a document may hold changes that come as events once more. Its version is still the watermark, so
    those events win, and end in the same state.
    """

    def __init__(self, client: MongoClient[Any], policy: Policy = NO_POLICY) -> None:
        self._client = client
        self._policy = policy
        self.exact = client.admin.command("isMaster")["maxWireVersion"] >= _WIRE_VERSION_5_0

    def events(self, chunk: Chunk, at: Timestamp) -> list[bytes]:
        """Give the documents of a chunk as `read` events."""
        token = ResumeToken.high_water_mark(at).to_bson()
        name, fields = chunk.namespace, key_fields(self._client, chunk.namespace)
        return [snapshot_event(name, document, token, at, fields) for document in self.documents(chunk, at)]

    def documents(self, chunk: Chunk, at: Timestamp) -> Iterator[bytes]:
        """Give the documents of a chunk as of a time."""
        bounds: dict[str, Any] = {"hint": {"_id": 1}}
        if chunk.lower is not None:
            bounds["min"] = RawBSONDocument(chunk.lower)
        if chunk.upper is not None:
            bounds["max"] = RawBSONDocument(chunk.upper)
        yield from self._find(chunk.namespace, at, filter={}, **bounds)
        if chunk.upper is None and chunk.lower is not None:
            # An index scan from `min` on ends before MaxKey, which is an `_id` like any other.
            yield from self._find(chunk.namespace, at, filter={"_id": {"$eq": MaxKey()}})

    def deletes(self, check: KeyCheck, at: Timestamp) -> list[bytes]:
        """Give a delete event for each of the keys whose document does not exist as of a time.

        In a sharded collection a document with another shard key is another one, although its `_id` may be the same:
        then the delete is as of the gap, so that to readers by `_id` the document's row is not older.
        A key that was captured before the collection was sharded is its `_id` alone.
        """
        ids = {key: value for key in check.keys if (value := raw.field(key, b"_id")) is not None}
        fields = key_fields(self._client, check.namespace)
        # Keys that a policy changes cannot be asked for: then all keys of the collection are read.
        query = {} if self._policy.changes_keys(check.namespace) else _with_ids(list(ids.values()))
        there: set[tuple[bytes, ...]] = set()
        for document in self._find(check.namespace, at, filter=query, projection=fields.projection):
            known = (self._policy.document(check.namespace, key.of(document)) for key in (fields, BY_ID))
            there |= {_comparable(key) for key in known}
        deletes = []
        for key, value in ids.items():
            if _comparable(key) not in there:
                has_moved = _comparable(_by_id(value)) in there
                deletes.append(_delete(check.namespace, key, (check.newest_lost or at) if has_moved else at))
        return deletes

    def _find(self, namespace: str, at: Timestamp, **command: Any) -> Iterator[bytes]:
        with self._cursor(namespace, at, command) as cursor:
            for document in cursor:
                yield bytes(document.raw)

    def _cursor(self, namespace: str, at: Timestamp, command: Mapping[str, Any]) -> CommandCursor[RawBSONDocument]:
        if self.exact:
            try:
                return self._open_cursor(namespace, {"level": "snapshot", "atClusterTime": at}, command)
            except OperationFailure as error:
                if error.code != SNAPSHOT_UNAVAILABLE or not self._is_capped(namespace):
                    raise
        return self._open_cursor(namespace, _no_earlier_than(at), command)

    def _open_cursor(
        self, namespace: str, concern: Mapping[str, Any], command: Mapping[str, Any]
    ) -> CommandCursor[RawBSONDocument]:
        database, _, collection = namespace.partition(".")
        # pymongo decodes the first batch by the option of the call and all others by that of the database.
        return self._client.get_database(database, codec_options=RAW).cursor_command(
            "find",
            collection,
            read_preference=ReadPreference.PRIMARY,
            codec_options=RAW,
            readConcern=concern,
            **command,
        )

    def _is_capped(self, namespace: str) -> bool:
        """Whether the server refuses to read a collection at an exact time."""
        database, _, collection = namespace.partition(".")
        found = self._client[database].list_collections(filter={"name": collection})
        return any(info["options"].get("capped", False) for info in found)


def _by_id(value: raw.Value) -> bytes:
    return raw.document(raw.element(value.kind, b"_id", value.data))


def _delete(namespace: str, key: bytes, as_of: Timestamp) -> bytes:
    return recovered_delete(namespace, key, ResumeToken.high_water_mark(as_of).to_bson(), as_of)


def _with_ids(ids: list[raw.Value]) -> RawBSONDocument:
    wanted = raw.document(raw.element(raw.ARRAY, b"$in", raw.array(ids)))
    return RawBSONDocument(raw.document(raw.element(raw.DOCUMENT, b"_id", wanted)))


def _comparable(key: bytes) -> tuple[bytes, ...]:
    """Give what is equal for keys that are equal to the server: 5, 5.0 and NumberLong(5) are one `_id`."""
    fields = sorted((name, raw.Value(kind, key[begin:end])) for kind, name, begin, end in raw.elements(key))
    return tuple(part for name, value in fields for part in (name, keystring.encode([value])[0]))


def _no_earlier_than(at: Timestamp) -> dict[str, Any]:
    return {**ReadConcern("majority").document, "afterClusterTime": at}
