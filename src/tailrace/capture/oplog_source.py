"""Events from the engine on the oplog, with the choice of namespaces made here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import bson
from pymongo import MongoClient

from tailrace import raw
from tailrace.capture.namespaces import Namespaces
from tailrace.capture.source import WITHOUT_IMAGES, EventBatch, EventSource, Start, Stream, target_of
from tailrace.driver import Batch
from tailrace.engine.event import Event
from tailrace.engine.live import OplogChangeStream, watch_oplog
from tailrace.errors import SettingsError


class OplogSource(EventSource):
    """The engine on the oplog: several times the throughput, and a fraction of the load on the primary."""

    def open(self, start: Start, *, one_by_one: bool = False, without_images: bool = False) -> Stream:
        """Open a stream that is made here; it needs the role `read` on the database `local`.

        The engine knows each event's namespace without looking into the event, so choosing by it here costs nothing.
        Only for a user's own stages, which may not see other collections, it is the first stage as elsewhere.
        """
        _refuse_cluster(self.client)
        chosen = self.selection
        stages = [*(chosen.stages() if chosen.pipeline else []), *([WITHOUT_IMAGES] if without_images else [])]
        stream = watch_oplog(
            target_of(self.client, chosen),
            stages,
            full_document=None if without_images else chosen.full_document,
            full_document_before_change=None if without_images else chosen.full_document_before_change,
            start_after=None if start.token is None else bson.decode(start.token),
            start_at_operation_time=None if start.token is not None else start.time,
            max_await_time_ms=chosen.max_await_ms,
            batch_size=1 if one_by_one else chosen.batch_size,
        )
        return stream if chosen.pipeline or chosen.watched.everything else _Chosen(stream, chosen.watched)


def _refuse_cluster(client: MongoClient[Any]) -> None:
    """Say at once what cannot work: a router has no oplog, and that of config servers holds no documents."""
    hello = client.admin.command("isMaster")
    if hello.get("msg") == "isdbgrid" or "configsvr" in hello:
        raise SettingsError(
            "the oplog of a whole cluster is not read by one producer",
            hint="Use capture.source = change-stream through the router, or a producer for each shard's replica set.",
        )


class _Chosen:
    """A stream without the events of other collections."""

    def __init__(self, stream: OplogChangeStream, namespaces: Namespaces) -> None:
        self._stream = stream
        self._namespaces = namespaces
        self._known: dict[bytes, bool] = {b"": True}  # the end of the stream itself

    def batches(self) -> Iterator[EventBatch]:
        """Give every batch, also one of which nothing is left: its position is news."""
        for batch in self._stream.batches():
            events = [event.raw for event in batch.found if self._has(event)]
            yield Batch(events, batch.resume_token, batch.operation_time)

    def close(self) -> None:
        """Free the cursor on the server."""
        self._stream.close()

    def _has(self, event: Event) -> bool:
        known = self._known.get(event.namespace)
        if known is None:
            known = self._known[event.namespace] = self._namespaces.contains_event(event.namespace.decode())
        return known or (event.operation_type == "rename" and self._is_renamed_into(event.raw))

    def _is_renamed_into(self, event: bytes) -> bool:
        found = raw.field(event, b"to")
        if found is None:
            return False
        new = bson.decode(found.data)
        return self._namespaces.contains(new["db"], new["coll"])
