"""A channel over all shards: merged once, for all subscribers to a cluster that asked for the same."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from tailrace.errors import TailraceError
from tailrace.hub.event_log import EventLog
from tailrace.hub.merged import MergedSubscription
from tailrace.token.resume_token import ResumeToken

_sort_key = attrgetter("sort_key")


class MergedChannel(EventLog):
    """All events behind the place where a merged stream stood when it began to be read by many."""

    def __init__(self, merge: MergedSubscription, max_bytes: int) -> None:
        super().__init__(merge.position_time, max_bytes)
        self.merge = merge
        self._behind = merge.reached.key
        """Behind which token all events are here."""

    @property
    def has_news(self) -> bool:
        """Whether a shard has something, or has come further."""
        return self.merge.has_news

    @property
    def is_quick(self) -> bool:
        """Whether no shard has to be asked to make events of it."""
        return self.merge.is_quick

    @property
    def end_position(self) -> ResumeToken:
        """How far the merged stream has come."""
        return self.merge.reached

    @property
    def goes_on(self) -> bool:
        """Whether more will come."""
        return not (self.is_broken or self.is_ended or self.error)

    def make_events(self) -> None:
        """Merge what the shards have."""
        with self._lock:
            if not self.goes_on:
                return
            try:
                events = self.merge.take()
            except TailraceError as error:
                self.error = error
                return
            self.is_ended = self.merge.is_closed
            self.reached = self.merge.position_time
            self._append(events)

    def close(self) -> None:
        """Stop to merge."""
        with self._lock:
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
