"""How a subscriber to a whole cluster reads: by a merge of its own, until it joins a channel that is merged for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.cluster.merged import MergedStream
from tailrace.engine.options import StreamSpec, read_token
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
