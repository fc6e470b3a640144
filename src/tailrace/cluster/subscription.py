"""How a subscriber to a whole cluster reads: by a merge of its own, until it joins a channel that is merged for all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tailrace.cluster.merged import MergedStream
from tailrace.engine.event import Event
from tailrace.engine.options import StreamSpec, read_token
from tailrace.errors import TailraceError
from tailrace.hub.batch import Batch
from tailrace.hub.event_log import EventLog, Reading
from tailrace.hub.subscription import Standing, Subscription
from tailrace.token.resume_token import ResumeToken

if TYPE_CHECKING:
    from tailrace.cluster.hub import ClusterHub


class MergedReading:
    """A merge of all shards, for one subscriber alone or that of the channel it has joined."""

    def __init__(self, cluster: ClusterHub, spec: StreamSpec, merge: Callable[[StreamSpec], MergedStream]) -> None:
        self._cluster = cluster
        self._spec = spec
        self._open = merge
        self.merge = merge(spec)
        """Its own, or that of its channel."""

    @property
    def standing(self) -> Standing:
        """Where it stands."""
        return Standing(self.merge.position, self.merge.position)

    @property
    def is_closed(self) -> bool:
        """Whether the stream has ended."""
        return self.merge.is_closed

    @property
    def is_catching_up(self) -> bool:
        """Whether some shard is read by a scan of its own."""
        return self.merge.is_catching_up

    @property
    def has_data(self) -> bool:
        """Whether the next `poll` may find something."""
        return self.merge.has_data

    @property
    def channels(self) -> tuple[EventLog, ...]:
        """The channels of the shards."""
        return self.merge.channels

    def poll(self, max_events: int | None, max_bytes: int) -> Batch:
        """Give the events that may leave now."""
        return self.merge.poll(max_events, max_bytes, encode=True)

    def join(self, reader: Subscription[Any]) -> tuple[EventLog, int] | None:
        """Find the channel, when that has everything behind the position; the first subscriber's merge becomes it."""
        joined = self._cluster.join(reader, self._spec, self.merge) if self.merge.may_be_shared else None
        if joined is not None and joined[0].merge is not self.merge:
            self.merge.close()
            self.merge = joined[0].merge
        return joined

    def restart(self, position: ResumeToken) -> None:
        """Merge again from a position."""
        options = replace(self._spec.options, start_after=position, resume_after=None, start_at_operation_time=None)
        start = read_token(options, self._cluster.dialect)
        self._spec = replace(self._spec, options=options, start_token=start)
        self.merge = self._open(self._spec)

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self.merge.close()

    def at_end(self, position: ResumeToken, reading: Reading) -> Standing:
        """Stand at the last event, or as far as the merge has come when there was none."""
        mark = max(position, reading.end_position)
        return Standing(position if reading.events else mark, mark)

    def after_invalidate(self, position: ResumeToken, reading: Reading) -> ResumeToken:
        """Stand at the invalidate, which was the last event."""
        return position

    def has_reached_opening(self, high_water_mark: ResumeToken) -> bool:
        """Never let anybody wait: a router does not."""
        return True


_sort_key = attrgetter("sort_key")


class MergedChannel(EventLog):
    """All events behind the place where a merged stream stood when it began to be read by many."""

    def __init__(self, merge: MergedStream, max_bytes: int) -> None:
        super().__init__(merge.position.time, max_bytes)
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
        self._append(events, self.merge.position.time, is_ended=self.merge.is_closed)
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
