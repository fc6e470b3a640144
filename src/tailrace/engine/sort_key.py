"""What a router needs to merge the streams of several shards: each event's token as `$sortKey`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event
from tailrace.raw import Value


class AddSortKey:
    """Puts the token behind the event's own fields, where no user's stage can touch it."""

    def __init__(self, events: Iterable[Event | None], dialect: Dialect) -> None:
        self._events = events
        self._as_array = dialect.sort_key_is_array

    def __iter__(self) -> Iterator[Event | None]:
        for event in self._events:
            yield None if event is None else event._replace(raw=self._with_key(event))

    def _with_key(self, event: Event) -> bytes:
        if self._as_array:
            key = raw.array([Value(raw.DOCUMENT, event.token)])
            return raw.append(event.raw, raw.element(raw.ARRAY, b"$sortKey", key))
        return raw.append(event.raw, raw.element(raw.DOCUMENT, b"$sortKey", event.token))
