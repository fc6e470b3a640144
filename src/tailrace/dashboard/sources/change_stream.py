"""The events of MongoDB itself, for captures whose sink cannot be followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymongo import MongoClient

from tailrace.dashboard.view.live_events import SeenEvent
from tailrace.dashboard.view.record_view import as_json, namespace_of, short, summary_of, wall_time_of
from tailrace.dashboard.web.answers import EventLine
from tailrace.driver import Batch, ChangeStream, token_of, watch
from tailrace.raw.cluster_time import ClusterTime
from tailrace.raw.extended_json import relaxed_document
from tailrace.settings import Settings
from tailrace.token import ResumeToken

_MOST_AT_ONCE = 200


class ChangeStreamSource:
    """Watches the whole cluster from now on; gives the number of events it has seen."""

    name = "events"

    def __init__(self, settings: Settings, add: Callable[[SeenEvent], object]) -> None:
        self._uri = settings.mongodb.uri.get_secret_value()
        self._add = add
        self._client: MongoClient[Any] | None = None
        self._stream: ChangeStream[Any] | None = None
        self._count = 0

    def look(self) -> int:
        """Take what the next batch has; a batch too large for a page is taken from its end."""
        if self._stream is None:
            self._client = MongoClient(self._uri, serverSelectionTimeoutMS=3_000)
            self._stream = watch(self._client, max_await_time_ms=250)
        batch: Batch = next(self._stream.batches())
        self._count += len(batch.events)
        for event in batch.events[-_MOST_AT_ONCE:]:
            self._add(seen(bytes(event)))
        return self._count

    def close(self) -> None:
        """Close the stream and the connection."""
        stream, client, self._stream, self._client = self._stream, self._client, None, None
        if stream is not None:
            stream.close()
        if client is not None:
            client.close()


def seen(event: bytes) -> SeenEvent:
    """Make an event of its BSON."""
    token = ResumeToken.parse(token_of(event))
    time_ = token.cluster_time
    value = relaxed_document(event)
    record = as_json(value)
    wall = wall_time_of(record)
    line = EventLine(
        number=0,
        at=wall if wall is not None else float(time_.time),
        seen_at=time.time(),
        operation=record.get("operationType", ""),
        namespace=namespace_of(record) or "",
        key=short(record.get("documentKey", {}).get("_id", "")),
        summary=summary_of(record),
        cluster_time=f"{time_.time},{time_.inc}",
        bytes=len(event),
    )
    return SeenEvent(
        line=line,
        cluster_time=ClusterTime.from_timestamp(time_),
        resolution=0.001 if wall is not None else 1.0,
        arrived_at=None,
        token=token.hex,
        value=value,
        source="change stream",
    )
