"""Change streams over a live replica set, made here from its oplog.

    with watch_oplog(client.shop.orders, full_document="updateLookup") as stream:
        for batch in stream.batches():
            ...  # batch.events are BSON documents; keep batch.token when they are done

The events, tokens and refusals are those of the server's own `watch`, so that a program may move between
the two at any event. It needs the role `read` on the database `local`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from bson.binary import Binary
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from tailrace import server_codes
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import EventColumns, Events
from tailrace.engine.images import ImageStore
from tailrace.engine.options import StreamSpec, parse_command
from tailrace.engine.scope import split_namespace
from tailrace.engine.stream import EngineStream, open_stream
from tailrace.errors import ServerUnreachable
from tailrace.oplog.tail import LiveOplog, is_passing
from tailrace.owned.closeable import Closeable
from tailrace.raw.cluster_time import ClusterTime
from tailrace.retry import RetryPolicy, retried
from tailrace.token.resume_token import ResumeToken

_RAW: Final[CodecOptions[RawBSONDocument]] = CodecOptions(RawBSONDocument)
_SECONDS_UNSHARDED: Final = 1.0
"""For how long a collection is believed to have no shard key yet; a key that it has stays."""

Target = MongoClient[Any] | Database[Any] | Collection[Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Some events in a row, or none, and the position behind them."""

    found: Events
    """The events with their headers."""
    position: ResumeToken
    operation_time: Timestamp
    """How far the server was; how far the oplog was read, when there was no event."""
    is_at_end: bool
    """Whether the server had nothing more to give; entries of other collections make a batch empty too."""

    @property
    def events(self) -> list[bytes]:
        """The events as BSON documents."""
        return self.found.raws if isinstance(self.found, EventColumns) else [event.raw for event in self.found]

    @property
    def tokens(self) -> list[bytes]:
        """The resume token of each event, as BSON."""
        return [event.token for event in self.found]

    @property
    def token(self) -> bytes:
        """Where to resume after the whole batch, as BSON."""
        return self.position.to_bson()


class OplogChangeStream(Closeable):
    """A change stream whose events are made here, from the oplog of a replica set."""

    def __init__(self, stream: EngineStream, batch_size: int | None) -> None:
        self._stream = stream
        self._batch_size = batch_size

    @property
    def alive(self) -> bool:
        """Whether more events may come: not after an invalidate, nor after `close`."""
        return not self._stream.is_closed

    @property
    def resume_token(self) -> ResumeToken:
        """The position behind the last batch."""
        return self._stream.post_batch_resume_token

    def batches(self) -> Iterator[EventBatch]:
        """Give all events, some at a time; empty batches come too, because their position is new."""
        while not self._stream.is_closed:
            yield self.next_batch()

    def next_batch(self) -> EventBatch:
        """Wait for events, at most as long as the oplog waits for entries."""
        stream = self._stream
        found = stream.next_events(self._batch_size)
        server = max(stream.operation_time, stream.reached) if found else stream.reached
        return EventBatch(found, stream.post_batch_resume_token, ClusterTime(server).timestamp, stream.is_at_end)

    def close(self) -> None:
        """Stop, and free the cursor on the server."""
        self._stream.close()


def watch_oplog(
    target: Target,
    pipeline: Sequence[Mapping[str, Any]] = (),
    *,
    resume_after: Mapping[str, Any] | None = None,
    start_after: Mapping[str, Any] | None = None,
    start_at_operation_time: Timestamp | None = None,
    full_document: str | None = None,
    full_document_before_change: str | None = None,
    show_expanded_events: bool | None = None,
    batch_size: int | None = None,
    max_await_time_ms: int = 1_000,
    retry_seconds: float = 60.0,
    images: ImageStore | None = None,
    unproved: bool = False,
) -> OplogChangeStream:
    """Watch a collection, a database or (given a client) the cluster, as `target.watch` would.

    `retry_seconds` is for how many seconds without a primary it retries before `ServerUnreachable`. `images` finds the
    documents of events; those of one shard of a cluster may be on others by now. A server that was never compared with
    the engine is refused, unless whoever asks compares it (`unproved`).
    """
    client, _, _ = _parts(target)
    options = {
        "resumeAfter": resume_after,
        "startAfter": start_after,
        "startAtOperationTime": start_at_operation_time,
        "fullDocument": full_document,
        "fullDocumentBeforeChange": full_document_before_change,
        "showExpandedEvents": show_expanded_events,
    }
    version = client.server_info()["version"]
    dialect = Dialect.nearest(version) if unproved else Dialect.of(version)
    stream = open_stream(
        read_spec(target, pipeline, options, dialect),
        LiveOplog(client, await_ms=max_await_time_ms, retry_seconds=retry_seconds),
        dialect,
        latest=operation_time(client),
        images=images or LiveImages(client, retry_seconds),
        now=datetime.now(UTC),
    )
    return OplogChangeStream(stream, batch_size)


def read_spec(
    target: Target, pipeline: Sequence[Mapping[str, Any]], options: Mapping[str, Any], dialect: Dialect
) -> StreamSpec:
    """Read the options of `watch`, by the names that they have in a command; None stands for one not given."""
    _, database, collection = _parts(target)
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(target, MongoClient):
        given["allChangesForCluster"] = True
    stages = [{"$changeStream": given}, *pipeline]
    return parse_command({"aggregate": collection or 1, "pipeline": stages, "cursor": {}}, database, dialect)


def _parts(target: Target) -> tuple[MongoClient[Any], str, str | None]:
    if isinstance(target, MongoClient):
        return target, "admin", None
    if isinstance(target, Database):
        return target.client, target.name, None
    return target.database.client, target.database.name, target.name


def operation_time(client: MongoClient[Any]) -> int:
    """Give the time of the newest operation the primary has: a stream without a start begins behind it."""
    return ClusterTime.from_timestamp(client.admin.command("ping")["operationTime"])


def first_document(find: Callable[[], Any]) -> bytes | None:
    """Give the document that a `find` finds; None when there is none, or no such collection."""
    try:
        reply = find()
    except OperationFailure as error:
        if error.code == server_codes.NAMESPACE_NOT_FOUND:
            return None
        raise
    batch = reply["cursor"]["firstBatch"]
    return bytes(batch[0].raw) if batch else None


class LiveImages:
    """Images from the collections of a live replica set; reads are retried during elections."""

    def __init__(self, client: MongoClient[Any], retry_seconds: float = 60.0) -> None:
        self._client = client
        self._retry_seconds = retry_seconds
        self._shard_keys = _ShardKeys(client)

    def shard_key(self, uuid: bytes) -> Sequence[bytes] | None:
        """Look a shard key up in what a shard keeps of its cluster's catalog."""
        return self._until_answered(lambda: self._shard_keys.of(uuid))

    def current_document(self, namespace: bytes, uuid: bytes | None, key: bytes, since: int) -> bytes | None:
        """Read the majority-committed document with this key, by the collection's UUID or its name."""
        database, collection = split_namespace(namespace)
        found_in = collection.decode() if uuid is None else Binary(uuid, 4)
        query = {"find": found_in, "filter": RawBSONDocument(key)}
        return self._first(database.decode(), query, since)

    def pre_image(self, uuid: bytes, time: int, index: int) -> bytes | None:
        """Read the pre-image that the server stored for an operation."""
        key = {"nsUUID": Binary(uuid, 4), "ts": ClusterTime(time).timestamp, "applyOpsIndex": Int64(index)}
        found = self._first("config", {"find": "system.preimages", "filter": {"_id": key}}, time)
        return None if found is None else bytes(RawBSONDocument(found)["preImage"].raw)

    def _first(self, database: str, query: dict[str, Any], since: int) -> bytes | None:
        """Read one document from a node that has reached a time: a new primary may have to catch up."""
        concern = {"level": "majority", "afterClusterTime": ClusterTime(since).timestamp}
        command = {**query, "limit": 1, "singleBatch": True, "readConcern": concern}
        target = self._client[database]
        return first_document(lambda: self._until_answered(lambda: target.command(command, codec_options=_RAW)))

    def _until_answered(self, ask: Callable[[], T]) -> T:
        return retried(
            ask,
            RetryPolicy(first=0.05, longest=0.5, budget=self._retry_seconds),
            is_passing=lambda error: isinstance(error, PyMongoError) and is_passing(error),
            spent=lambda error: ServerUnreachable(f"an image or a shard key cannot be read: {error}"),
        )


class _ShardKeys:
    """Shard keys as a shard knows them, by the collections' UUIDs."""

    def __init__(self, client: MongoClient[Any]) -> None:
        self._client = client
        self._is_shard: bool | None = None
        self._known: dict[bytes, tuple[Sequence[bytes], float]] = {}

    def of(self, uuid: bytes) -> Sequence[bytes] | None:
        """Give the paths of a collection's shard key, none when it is not sharded; None when nothing can be here."""
        if self._is_shard is None:
            identity = self._client.admin["system.version"].find_one({"_id": "shardIdentity"})
            self._is_shard = identity is not None
        if not self._is_shard:
            return None
        now = time.monotonic()
        known = self._known.get(uuid)
        if known is None or (not known[0] and now - known[1] > _SECONDS_UNSHARDED):
            known = self._known[uuid] = (self._read_shard_key(uuid), now)
        return known[0]

    def _read_shard_key(self, uuid: bytes) -> Sequence[bytes]:
        cached = self._client.config["cache.collections"].find_one({"uuid": Binary(uuid, 4)})
        return () if cached is None else tuple(name.encode() for name in cached["key"])
