"""One subscriber to a whole cluster: first a merge of its own, then a place in a channel that is merged for all."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tailrace.engine.options import StreamSpec, read_token
from tailrace.hub.batch import Batch
from tailrace.hub.channel_reader import ChannelReader
from tailrace.hub.event_log import EventLog, Reading
from tailrace.router.merge import Hold
from tailrace.token.resume_token import ResumeToken

if TYPE_CHECKING:
    from tailrace.hub.cluster import ClusterHub


class ClusterSubscription(ChannelReader):
    """A change stream over all shards, in the order of their tokens."""

    def __init__(self, cluster: ClusterHub, spec: StreamSpec, latest: int, now: datetime) -> None:
        super().__init__(cluster, spec)
        self._cluster = cluster
        self._latest = latest
        self._now = now
        self._merge = cluster.merge(spec, latest, now)
        """Its own, or that of its channel."""
        self.position = self.promise = self._merge.position

    # --- what it shows

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that take part at this place of the stream."""
        return self._merge.shards

    @property
    def positions(self) -> dict[str, ResumeToken]:
        """The position of each shard: all that it has given is in the merge, or was handed out."""
        return self._merge.positions

    @property
    def holds(self) -> list[Hold]:
        """Where each shard stands in the merge, and for how long it has held the others back."""
        return self._merge.holds

    @property
    def has_news(self) -> bool:
        """Whether the next `poll` may find something."""
        return self._merge.has_news if self._channel is None else super().has_news

    @property
    def channels(self) -> tuple[EventLog, ...]:
        """The channels whose news it waits for: those of the shards, until it has joined a merged one."""
        return self._merge.channels if self._channel is None else super().channels

    @property
    def is_catching_up(self) -> bool:
        """Whether some shard is still read by a scan of its own."""
        return self._merge.is_catching_up

    # --- reading

    def _read_by_itself(self, max_events: int | None, max_bytes: int) -> Batch:
        batch = self._merge.poll(max_events, max_bytes)
        self.position = self.promise = batch.position
        if self._merge.is_closed:
            self.close()
        elif self._merge.is_settled and not self._merge.is_catching_up:
            self._join()
        return batch

    def _join(self) -> None:
        """Go over to the channel, when that has everything behind the position; the first one's merge becomes it."""
        joined = self._cluster.join(self, self._spec, self._merge)
        if joined is None:
            return
        channel, self._index = joined
        if channel.merge is not self._merge:
            self._merge.close()
        self._channel, self._merge = channel, channel.merge

    def _read_by_itself_again(self) -> None:
        options = replace(
            self._spec.options, start_after=self.position, resume_after=None, start_at_operation_time=None
        )
        start = read_token(options, self._cluster.dialect)
        self._spec = replace(self._spec, options=options, start_token=start)
        self._merge = self._cluster.merge(self._spec, self._latest, self._now)

    def _end_reading(self) -> None:
        if self._channel is None:
            self._merge.close()

    def _stand_behind_the_last(self, reading: Reading) -> None:
        """Stand at the invalidate, which was the last event."""

    def _stand_at_the_end(self, reading: Reading) -> None:
        self.promise = max(self.position, reading.end_position)
        if not reading.events:
            self.position = self.promise
