"""The choice of namespaces, made on events of the engine without looking into them."""

from __future__ import annotations

from collections.abc import Iterable

from bson.timestamp import Timestamp

from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import UnfinishedBatch
from tailrace.driver import Batch
from tailrace.engine.event import NEW_SHARD, Event, EventColumns
from tailrace.event import ChangeEvent, EventBatch


class EventChoice:
    """Which events are wanted, known by their namespaces; a namespace is looked at once."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._known: dict[bytes, bool] = {b"": True}  # the end of the stream itself

    def batch(
        self, found: Iterable[Event], token: bytes, operation_time: Timestamp | None, *, is_at_end: bool = False
    ) -> EventBatch:
        """Give what is left of a batch; also when that is nothing, because its position is news.

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
