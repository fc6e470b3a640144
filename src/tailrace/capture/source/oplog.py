"""Events from the engine on the oplog, with the choice of namespaces made here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import bson
from bson.timestamp import Timestamp
from pymongo import MongoClient

from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import (
    WITHOUT_IMAGES,
    ClusterAccess,
    EventSource,
    Scope,
    Selection,
    Start,
    UnfinishedBatch,
    target_of,
)
from tailrace.driver import Batch
from tailrace.engine.event import NEW_SHARD, Event, EventColumns
from tailrace.engine.images import ImageStore
from tailrace.engine.live import OplogChangeStream, watch_oplog
from tailrace.errors import SettingsError
from tailrace.event import ChangeEvent, EventBatch, EventStream, StreamOf
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import ResumeToken

if TYPE_CHECKING:
    from tailrace.cluster import ClusterHub


class OplogSource(EventSource):
    """The engine on the oplog: at least the rate of a change stream, for a tenth of the primary's CPU.

    Through a router or a config server it reads the oplogs of all shards of the cluster, merged.
    """

    _compares_shards = False
    """Whether the stream of a cluster is compared shard by shard."""

    def __init__(
        self,
        client: MongoClient[Any],
        selection: Selection,
        cluster: ClusterAccess | None = None,
        images: ImageStore | None = None,
        *,
        unproved: bool = False,
    ) -> None:
        """`unproved`: whoever asks compares what the engine makes of a server that it was never compared with."""
        super().__init__(client, selection)
        self._cluster = cluster or ClusterAccess("")
        self._images = images
        self._unproved = unproved

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> EventStream:
        """Open a stream that is made here; it needs the role `read` on the database `local`.

        The engine knows each event's namespace without looking into the event, so choosing by it here costs nothing.
        Only for a user's own stages, which may not see other collections, it is the first stage as elsewhere; and
        where each shard's own stream is compared, which has to choose alike.
        """
        chosen = self.selection
        chooses_first = bool(chosen.pipeline) or self._compares_shards
        stages = [*(chosen.stages() if chooses_first else []), *([WITHOUT_IMAGES] if without_images else [])]
        choice = None if chooses_first else EventChoice(chosen.watched)
        full_document = None if without_images else chosen.full_document
        before_change = None if without_images else chosen.full_document_before_change
        start_after = None if start.token is None else bson.decode(start.token)
        start_at = None if start.token is not None else start.time
        if self.is_cluster:
            from tailrace.capture.source.cluster import ClusterStream, open_cluster

            self._check_cluster()
            return ClusterStream(
                open_cluster(self.client, self._cluster, self._cluster_hub),
                target_of(self.client, chosen),
                stages,
                {
                    "startAfter": start_after,
                    "startAtOperationTime": start_at,
                    "fullDocument": full_document,
                    "fullDocumentBeforeChange": before_change,
                },
                choice,
                await_seconds=chosen.max_await_ms / 1000,
                one_by_one=one_by_one,
            )
        stream = watch_oplog(
            target_of(self.client, chosen),
            stages,
            full_document=full_document,
            full_document_before_change=before_change,
            start_after=start_after,
            start_at_operation_time=start_at,
            max_await_time_ms=chosen.max_await_ms,
            batch_size=1 if one_by_one else None,  # those of the oplog
            images=self._images,
            unproved=self._unproved,
        )
        return StreamOf(lambda: _chosen(stream, choice), stream.close)

    def operation_time(self) -> Timestamp:
        """Give a time that nothing which was written before this call has passed; every shard is asked."""
        if not self.is_cluster:
            return super().operation_time()
        from tailrace.capture.source.cluster import open_cluster

        with open_cluster(self.client, self._cluster, self._cluster_hub) as hub:
            return ClusterTime(hub.latest()).timestamp

    def now(self) -> tuple[bytes, Timestamp]:
        """Give a position behind everything that was written before the call; a cluster is asked for its time."""
        if not self.is_cluster:
            return super().now()
        from tailrace.capture.source.cluster import cluster_now

        return cluster_now(self.client, self._cluster, self._cluster_hub)

    def shards(self) -> list[str]:
        """Name the shards of the cluster; none for a replica set."""
        if not self.is_cluster:
            return []
        from tailrace.capture.source.cluster import shard_uris

        return sorted(shard_uris(self.client, self._cluster))

    def on_shard(self, name: str, stood_at: ResumeToken, connect: Callable[[str], MongoClient[Any]]) -> OplogSource:
        """Give a source of one shard's events alone; documents are still looked up where they are now."""
        from tailrace.capture.source.cluster import shard_images, shard_left, shard_uris

        uris = shard_uris(self.client, self._cluster)
        if name not in uris:
            raise shard_left(name, stood_at)
        own = connect(uris[name])
        images = shard_images(name, own, self.client, lambda shard: connect(uris[shard]))
        return OplogSource(own, self.selection, images=images)

    def documents(self) -> MongoClient[Any]:
        """Give the client, unless it sees no documents of the cluster, or those of one shard only."""
        if self.is_cluster and not self._is_router:
            raise SettingsError(
                "the documents of a cluster can be read through a mongos only, for a snapshot or a recovery",
                hint="Set mongodb.uri to that of a mongos; or begin without a snapshot: capture.start = now.",
            )
        return self.client

    def in_strict_order(self) -> OplogSource:
        """Let the shards wait for each other."""
        return OplogSource(self.client, self.selection, replace(self._cluster, order="strict"))

    def _cluster_hub(self, uri: str, **options: Any) -> ClusterHub:
        """Make the hub of all shards."""
        from tailrace.cluster import ClusterHub

        return ClusterHub(uri, **options)

    @property
    def is_cluster(self) -> bool:
        """Whether several oplogs are read."""
        return bool(self._cluster.shards) or self._is_router or "configsvr" in self._hello

    @cached_property
    def _hello(self) -> Mapping[str, Any]:
        return self.client.admin.command("isMaster")

    @property
    def _is_router(self) -> bool:
        return self._hello.get("msg") == "isdbgrid"

    def _check_cluster(self) -> None:
        """Say at once what cannot work."""
        if self._cluster.order == "per-key" and self.selection.scope is not Scope.CLUSTER:
            raise SettingsError(
                "order per key needs a stream of cluster scope, which nothing invalidates",
                hint="Remove capture.scope, or set capture.order = strict.",
            )
        if self.selection.heartbeat is not None and not self._is_router:
            raise SettingsError(
                "heartbeats are written through a mongos; config servers take none",
                hint="Set mongodb.uri to that of a mongos, or capture.heartbeat_seconds to 0.",
            )


def _chosen(stream: OplogChangeStream, choice: EventChoice | None) -> Iterator[EventBatch]:
    """Give every batch without the events of other collections, also one of which nothing is left."""
    for batch in stream.batches():
        if choice is not None:
            yield choice.batch(batch.found, batch.token, batch.operation_time, is_at_end=batch.is_at_end)
        elif batch.found or batch.is_at_end:
            yield batch
        else:
            yield UnfinishedBatch(batch.token, batch.operation_time)


class EventChoice:
    """Which events are wanted, known by their namespaces; a namespace is matched once."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._known: dict[bytes, bool] = {b"": True}  # the end of the stream itself

    def batch(
        self, found: Iterable[Event], token: bytes, operation_time: Timestamp | None, *, is_at_end: bool = False
    ) -> EventBatch:
        """Give what is left of a batch; also when that is nothing, because its position is new.

        One of which nothing is left says nothing about what comes after it, unless it was at the end.
        """
        if isinstance(found, EventColumns) and all(map(self._has_namespace, found.namespaces)):
            kept = found.raws
        else:
            kept = [event.raw for event in found if self._has(event)]
        return Batch(kept, token, operation_time) if kept or is_at_end else UnfinishedBatch(token, operation_time)

    def _has(self, event: Event) -> bool:
        if event.operation_type == NEW_SHARD:
            return False
        return self._has_namespace(event.namespace) or (
            event.operation_type == "rename" and self._is_renamed_into(event.raw)
        )

    def _has_namespace(self, namespace: bytes) -> bool:
        known = self._known.get(namespace)
        if known is None:
            known = self._known[namespace] = self._namespaces.contains_event(namespace.decode())
        return known

    def _is_renamed_into(self, event: bytes) -> bool:
        to = ChangeEvent(event).new_namespace
        return to is not None and self._namespaces.contains_name(to)
