"""Where events come from: one interface over the server's own change streams and the engine on the oplog."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import bson
from bson import json_util
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.database import Database

from tailrace.capture.source.namespaces import EVERYTHING, INTERNAL_DATABASES, NOT_TEMPORARY, WHOLE, Namespaces, Slice
from tailrace.driver import watch
from tailrace.errors import SettingsError
from tailrace.event import EventStream
from tailrace.families import Family, family_of, refuse_engine
from tailrace.token import ResumeToken

EVENTS_PER_BATCH: Final = 1_000
"""How many events go through capture together: from the engine, from a cluster, of a reply, of a snapshot."""
_EVENTS_PER_REPLY: Final = 10_000
"""With batches of this many events a server uses about 15 % less CPU for each than with those of 16 MB that it makes if
nothing is said, and the reader half of its own: both can use the same memory again."""

WITHOUT_IMAGES: Mapping[str, Any] = {
    "$project": {"operationType": 1, "clusterTime": 1, "wallTime": 1, "ns": 1, "documentKey": 1}
}
"""What is left of an event that is over 16 MB, so that it can be read."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How the shards of a cluster are reached, and how strictly their events are ordered."""

    uri: str
    """That of the client: shards are reached with its user and options."""
    shards: Mapping[str, str] = field(default_factory=dict)
    """URIs of shards by name; none means that the config servers are asked for them."""
    order: str = "strict"
    """`strict`, or `per-key`: no shard waits for another."""


class Scope(StrEnum):
    """How much of the deployment the stream covers before its filter."""

    CLUSTER = "cluster"
    """Never invalidated; the default."""
    DATABASE = "database"
    COLLECTION = "collection"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a stream begins: after a token, or at a time; with neither, now."""

    token: bytes | None = None
    time: Timestamp | None = None

    def __str__(self) -> str:
        if self.token is not None:
            return f"after {ResumeToken.parse(self.token)}"
        return f"at {self.time.time}:{self.time.inc}" if self.time else "now"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events are read, and how much of each."""

    namespaces: Namespaces = EVERYTHING
    scope: Scope = Scope.CLUSTER
    pipeline: tuple[Mapping[str, Any], ...] = ()
    """Stages that the server applies after the choice of namespaces."""
    full_document: str | None = None
    full_document_before_change: str | None = None
    slice: Slice = WHOLE
    max_await_ms: int = 1_000
    """How long the server waits for an event before an empty batch moves the position on."""
    heartbeat: str | None = None
    """The collection of the marks, which is read along although it is not captured."""
    expanded: bool = False
    """Whether DDL events are read too: those about collections and indexes, not documents (6.0 and later)."""
    family: str = "auto"
    """Whose server it is, as `mongodb.family` says."""
    soft_delete_field: str = "deleted"
    """What marks a deleted document on Cosmos DB."""

    @property
    def watched(self) -> Namespaces:
        """The namespaces whose events are read."""
        if self.heartbeat is None or self.namespaces.everything:
            return self.namespaces
        return replace(self.namespaces, collections=(*self.namespaces.collections, self.heartbeat))

    @property
    def fingerprint(self) -> str:
        """A text that changes when tokens of the stream before can no longer be used."""
        chosen = self.watched
        names = [*chosen.collections, *chosen.databases, *(f"/{pattern}/" for pattern in chosen.patterns)]
        options = {
            "scope": self.scope.value,
            "fullDocument": self.full_document,
            "fullDocumentBeforeChange": self.full_document_before_change,
        }
        return fingerprint_of(names, self.pipeline, options)

    def stages(self) -> list[Mapping[str, Any]]:
        """Give the whole pipeline: the choice of namespaces, then the user's stages."""
        if self.scope is Scope.COLLECTION:
            return list(self.pipeline)
        match = self.watched.match() if self.scope is Scope.CLUSTER else {"$match": NOT_TEMPORARY}
        return [match, *self.pipeline]


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """A batch without events although more may be there: nothing was left of what was read, or a shard is awaited.

    More of its very cluster time, too: a transaction has many events of one.
    """

    token: bytes
    operation_time: Timestamp | None
    events: Sequence[bytes] = ()


def read_pipeline(text: str, name: str) -> list[dict[str, Any]]:
    """Read stages that a user wrote as Extended JSON; `name` is the setting, option or flag that has them."""
    try:
        stages = json_util.loads(text)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"{name} is not Extended JSON: {error}", hint="Write a list of stages.") from None
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise SettingsError(f"{name} is not a list of stages", hint='Write for example [{"$match": {...}}].')
    return stages


class EventSource(ABC):
    """Opens streams of one selection."""

    def __init__(self, client: MongoClient[Any], selection: Selection) -> None:
        self.client = client
        self.selection = selection

    @property
    def fingerprint(self) -> str:
        """Which stream the tokens belong to."""
        return self.selection.fingerprint

    @property
    def gives_marks(self) -> bool:
        """Whether an empty batch has a position of its own: a stream then says how far it is while nothing happens."""
        return True

    @abstractmethod
    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open a stream; `one_by_one` and `without_images` are the way past an event over 16 MB."""

    def documents(self) -> MongoClient[Any]:
        """Give what the documents themselves can be read by, as snapshots and recoveries do; or refuse."""
        return self.client

    def in_strict_order(self) -> EventSource:
        """Give a source whose events are all in the order of their tokens, as the rows of a snapshot need it."""
        return self

    def operation_time(self) -> Timestamp:
        """Give a time that nothing which was written before this call has passed.

        A mongos learns the newest time of every shard by asking all of them, as it does for this command.
        """
        answer = self.client.admin.command("listDatabases", nameOnly=True, authorizedDatabases=True)
        time: Timestamp = answer["operationTime"]
        return time

    def now(self) -> tuple[bytes, Timestamp]:
        """Give the token of the newest position and its time, without reading anything."""
        stream = self.open(Start())
        try:
            batch = next(stream.batches())
        finally:
            stream.close()
        if batch.token is None:
            raise SettingsError("the server gives no post-batch tokens", hint="MongoDB 4.0.7 or newer is needed.")
        return batch.token, ResumeToken.parse(batch.token).cluster_time


class ChangeStreamSource(EventSource):
    """The server's own change streams: works everywhere."""

    def __init__(
        self, client: MongoClient[Any], selection: Selection, events_per_batch: int = _EVENTS_PER_REPLY
    ) -> None:
        super().__init__(client, selection)
        self._events_per_batch = events_per_batch

    @property
    def _resumes_after(self) -> bool:
        """Whether a stream goes on by `resumeAfter`, because `startAfter` is not known."""
        return False

    def now(self) -> tuple[bytes, Timestamp]:
        """Give the newest position; an idle server shall not wait for an event before it answers."""
        if self.selection.max_await_ms > 1:
            return ChangeStreamSource(self.client, replace(self.selection, max_await_ms=1)).now()
        return super().now()

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open a change stream."""
        chosen = self.selection
        stages = [*chosen.stages(), *([WITHOUT_IMAGES] if without_images else [])]
        stream: EventStream = watch(
            target_of(self.client, chosen),
            stages,
            full_document=None if without_images else chosen.full_document,
            full_document_before_change=None if without_images else chosen.full_document_before_change,
            # startAfter crosses an invalidate event, and is the same as resumeAfter for every other token.
            start_after=None if self._resumes_after else start.token,
            resume_after=start.token if self._resumes_after else None,
            start_at_operation_time=None if start.token is not None else start.time,
            max_await_time_ms=chosen.max_await_ms,
            show_expanded_events=True if chosen.expanded else None,
            batch_size=1 if one_by_one else self._events_per_batch,
            split_large_events=self._splits and not without_images,
        )
        return stream

    @property
    def _splits(self) -> bool:
        """Whether events over 16 MB are asked for in parts, where the server can do that."""
        return True


class ComparableSource(ChangeStreamSource):
    """The server's own change streams as the engine gives them.

    Seen on 6.0.27: a stream that splits large events has tokens of version 2, and any other one of version 1; 7.0 has
    version 2 in both.
    """

    @property
    def _splits(self) -> bool:
        return bool(self.client.server_info()["versionArray"][0] >= 7)


def make_source(
    kind: str, client: MongoClient[Any], selection: Selection, cluster: ClusterAccess | None = None
) -> EventSource:
    """Make the source that the settings name; `cluster` says how the oplogs of a sharded cluster are read."""
    family = family_of(client, selection.family)
    if kind == "change-stream":
        if family is Family.COSMOSDB:
            from tailrace.capture.source.cosmosdb import CosmosDbSource

            return CosmosDbSource(client, selection)
        if family is Family.DOCUMENTDB:
            from tailrace.capture.source.documentdb import DocumentDbSource

            return DocumentDbSource(client, selection)
        return ChangeStreamSource(client, selection)
    if kind == "oplog":
        refuse_engine(family)
        from tailrace.capture.source.oplog import OplogSource

        return OplogSource(client, selection, cluster)
    raise SettingsError(f"there is no source {kind!r}", hint="Choose change-stream or oplog.")


def captured_collections(client: MongoClient[Any], selection: Selection) -> list[str]:
    """Give the full names of the collections that exist now and are chosen; views and system collections are not.

    Databases that are named are asked themselves, and otherwise all of them are asked for: a list of those that the
    user may see would leave out the others silently, and a recovery would take their documents for deleted.
    """
    return sorted(name for name, _ in _captured(client, selection))


def captured_uuids(client: MongoClient[Any], selection: Selection) -> dict[bytes, str]:
    """Give the same names by the UUIDs of their collections, where the server reports them."""
    found = ((name, info.get("info", {}).get("uuid")) for name, info in _captured(client, selection))
    return {uuid.bytes if isinstance(uuid, UUID) else bytes(uuid): name for name, uuid in found if uuid is not None}


def _captured(client: MongoClient[Any], selection: Selection) -> list[tuple[str, Mapping[str, Any]]]:
    if "configsvr" in client.admin.command("isMaster"):
        hint = "Give the URI of a mongos, through which the documents of a cluster are read."
        raise SettingsError("config servers hold no documents", hint=hint)
    chosen = selection.namespaces
    databases = chosen.named_databases
    if databases is None:
        databases = _all_databases(client, selection)
    return [
        (f"{database}.{info['name']}", info)
        for database in databases
        for info in _collections(client[database])
        if chosen.contains(database, info["name"])
    ]


def _all_databases(client: MongoClient[Any], selection: Selection) -> set[str]:
    """List every database that can be captured; a user who may not see all of them is refused."""
    command: dict[str, Any] = {"listDatabases": 1, "nameOnly": True}
    if family_of(client, selection.family) is Family.MONGODB:
        command["authorizedDatabases"] = False
    answer = client.admin.command(command)
    return {each["name"] for each in answer["databases"]} - INTERNAL_DATABASES


def _collections(database: Database[Any]) -> Iterator[Mapping[str, Any]]:
    for info in database.list_collections():
        if info.get("type", "collection") == "collection":
            yield info


def target_of(client: MongoClient[Any], selection: Selection) -> Any:
    """Give what a stream of the selection's scope is opened on."""
    chosen = selection.namespaces
    if selection.scope is Scope.CLUSTER:
        return client
    only = [*chosen.collections, *chosen.databases, *chosen.patterns]
    if selection.scope is Scope.DATABASE and only == list(chosen.databases) and len(only) == 1:
        return client[only[0]]
    if selection.scope is Scope.COLLECTION and only == list(chosen.collections) and len(only) == 1:
        database, _, collection = only[0].partition(".")
        return client[database][collection]
    raise SettingsError(
        f"a stream of {selection.scope.value} scope has exactly one {selection.scope.value}",
        hint="Use the scope `cluster`, which takes any choice of namespaces.",
    )


def token_time(token: bytes) -> Timestamp:
    """Give the cluster time of a token."""
    return ResumeToken.parse(token).cluster_time


def fingerprint_of(namespaces: Sequence[str], pipeline: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Give a short text that changes when the stream that a token belongs to changes.

    Order matters in a pipeline and inside its stages, and in nothing else.
    """
    document = {"namespaces": sorted(namespaces), "pipeline": list(pipeline), "options": dict(sorted(options.items()))}
    return hashlib.sha256(bson.encode(document)).hexdigest()[:16]
