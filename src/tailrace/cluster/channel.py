"""A channel over all shards: merged once, for all subscribers to a cluster that asked for the same."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from tailrace.cluster.merged import MergedStream
from tailrace.engine.event import Event
from tailrace.errors import TailraceError
from tailrace.hub.event_log import EventLog
from tailrace.token.resume_token import ResumeToken

_sort_key = attrgetter("sort_key")


class MergedChannel(EventLog):
    """All events behind the place where a merged stream stood when it began to be read by many."""

    def __init__(self, merge: MergedStream, max_bytes: int) -> None:
        super().__init__(merge.position_time, max_bytes)
        self.merge = merge
        self.is_costly = merge.is_costly
        self._end_position = merge.reached
        self._behind = merge.reached.key
        """Behind which token all events are here."""

    @property
    def has_data(self) -> bool:
        """Whether a shard has something, or has come further."""
        return self.merge.has_data

    @property
    def end_position(self) -> ResumeToken:
        """How far the merged stream has come with the events that are here."""
        return self._end_position

    @property
    def goes_on(self) -> bool:
        """Whether more will come."""
        return not (self.is_broken or self.is_ended or self.error)

    def _make_events(self, *, only_quick: bool) -> bool:
        """Merge what the shards have; a new one may have to be opened for it."""
        if only_quick:
            return False
        if not self.goes_on:
            return True
        try:
            events = self.merge.take()
        except TailraceError as error:
            self.error = error
            return True
        self._append(events, self.merge.position_time, is_ended=self.merge.is_closed)
        return True

    def _append(self, events: list[Event], reached: int, *, is_ended: bool) -> None:
        position = self.merge.reached
        super()._append(events, reached, is_ended=is_ended)
        with self._lock:
            self._end_position = position

    def close(self) -> None:
        """Stop to merge."""
        with self._making:
            self.is_ended = True
            self.merge.close()

    def index_behind(self, position: ResumeToken) -> int | None:
        """Give the index of the first event behind a position; None when it has lost some, or is not there yet."""
        with self._lock:
            if not self.goes_on or not self._behind <= position.key <= self.end_position.key:
                return None
            return self._first + bisect_right(self._events, position.key, key=_sort_key)

    def _drop(self, count: int) -> None:
        if count > 0:
            self._behind = self._events[count - 1].sort_key
        super()._drop(count)
