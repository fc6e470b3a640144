"""The events of MongoDB itself, for captures whose sink cannot be followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymongo import MongoClient

from tailrace.dashboard.answers import EventLine, ObservedEvent
from tailrace.dashboard.record_view import as_json, short, summary_of, wall_time_of
from tailrace.driver import Batch, ChangeStream, watch
from tailrace.errors import EventUnconvertible
from tailrace.event import ChangeEvent
from tailrace.policy.configured import policy_of
from tailrace.raw.display import relaxed_for_display
from tailrace.settings import Settings

_MOST_AT_ONCE = 200


class ChangeStreamSource:
    """Watches the whole cluster from now on; gives the number of events it has observed."""

    name = "events"

    def __init__(self, settings: Settings, add: Callable[[ObservedEvent], object]) -> None:
        self._uri = settings.mongodb.uri.get_secret_value()
        self._policy = policy_of(settings)
        self._add = add
        self._client: MongoClient[Any] | None = None
        self._stream: ChangeStream[Any] | None = None
        self._count = 0

    def poll(self) -> int:
        """Take what the next batch has; a batch too large for a page is taken from its end."""
        if self._stream is None:
            self._client = MongoClient(self._uri, serverSelectionTimeoutMS=3_000)
            self._stream = watch(self._client, max_await_time_ms=250)
        batch: Batch = next(self._stream.batches())
        self._count += len(batch.events)
        for event in batch.events[-_MOST_AT_ONCE:]:
            try:
                self._add(observed(self._policy.event(bytes(event))))
            except EventUnconvertible:
                continue  # counted, and not shown: nobody knows what of it may be
        return self._count

    def close(self) -> None:
        """Close the stream and the connection."""
        stream, client, self._stream, self._client = self._stream, self._client, None, None
        if stream is not None:
            stream.close()
        if client is not None:
            client.close()


def observed(event: bytes) -> ObservedEvent:
    """Make an event of its BSON."""
    change = ChangeEvent(event)
    at = change.token_time
    value = relaxed_for_display(event)
    record = as_json(value)
    wall = wall_time_of(record)
    line = EventLine(
        number=0,
        at=wall if wall is not None else float(at.seconds),
        observed_at=time.time(),
        operation=change.operation_type,
        namespace=change.namespace,
        key=short(record.get("documentKey", {}).get("_id", "")),
        summary=summary_of(record),
        cluster_time=f"{at.seconds},{at.increment}",
        bytes=len(event),
    )
    return ObservedEvent(
        line=line,
        cluster_time=at,
        resolution=0.001 if wall is not None else 1.0,
        arrived_at=None,
        token=change.token_text.decode(),
        value=value,
        source="change stream",
    )
