"""One subscriber to one shard: first a scan of its own from where it wants to start, then a place in a shared channel.

The step from one to the other is exact: the scan has given everything up to a time, and the channel has every event
behind that time. A subscriber that is too slow for its channel takes the step back, to a scan from its position.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from tailrace.engine.options import StreamSpec, read_token
from tailrace.engine.stream import EngineStream, to_int, to_timestamp
from tailrace.hub.batch import Batch
from tailrace.hub.channel import encode_elements
from tailrace.hub.channel_reader import ChannelReader
from tailrace.hub.event_log import Reading
from tailrace.token.resume_token import ResumeToken

if TYPE_CHECKING:
    from tailrace.hub.hub import Hub
    from tailrace.hub.reader import CatchUpReader


class Subscription(ChannelReader):
    """A change stream on the hub of one shard."""

    def __init__(self, hub: Hub, spec: StreamSpec, latest: int, now: datetime) -> None:
        super().__init__(hub, spec)
        self._hub = hub
        self._latest = latest
        self._now = now
        self._scan, self._reader = self._open_scan(spec)
        self._version = self._scan.token_version
        self._spec = replace(spec, token_version=self._version)
        self.position = self.promise = self._scan.post_batch_resume_token
        self._join()

    @property
    def has_reached_opening(self) -> bool:
        """Whether all that had happened when it was opened has been read."""
        options = self._spec.options
        begins_now = options.token is None and options.start_at_operation_time is None
        return begins_now or to_int(self.promise.cluster_time) > self._latest

    # --- by itself

    def _open_scan(self, spec: StreamSpec) -> tuple[EngineStream, CatchUpReader]:
        return self._hub.open_scan(spec, self._latest, self._now)

    def _read_by_itself(self, max_events: int | None, max_bytes: int) -> Batch:
        scan = self._scan
        events = scan.next_batch(max_events, max_bytes)
        self.position = self.promise = scan.post_batch_resume_token
        if scan.is_settled and self._reader.settled_at is not None:
            self._promise_behind(self._reader.settled_at)
        batch = Batch(events, self.position, encode_elements(events))
        if scan.is_closed:
            self.close()
        elif scan.is_settled:
            self._join()
        return batch

    def _join(self) -> None:
        """Go over to the shared channel, when that has everything behind what the scan has given."""
        behind = self._reader.settled_at
        if behind is None or not (self._scan.is_settled or self._reader.is_untouched):
            return
        start = self._spec.start_token
        if self._reader.is_untouched and start is not None and not start.is_high_water_mark:
            return
        joined = self._hub.join(self, self._spec, self._latest, self._now, behind)
        if joined is not None:
            self._channel, self._index = joined
            self._scan.close()

    def _read_by_itself_again(self) -> None:
        options = replace(
            self._spec.options, start_after=self.position, resume_after=None, start_at_operation_time=None
        )
        start = read_token(options, self._hub.dialect)
        self._scan, self._reader = self._open_scan(replace(self._spec, options=options, start_token=start))
        self._spec = self._scan.spec

    def _end_reading(self) -> None:
        if self._scan is not None:
            self._scan.close()

    # --- with others

    def _stand_behind_the_last(self, reading: Reading) -> None:
        if self._hub.dialect.ends_at_invalidate:
            self.position = reading.end_position

    def _stand_at_the_end(self, reading: Reading) -> None:
        if reading.reached > self.position_time:
            self.position = ResumeToken.high_water_mark(to_timestamp(reading.reached), self._version)
        self._promise_behind(reading.reached)

    def _promise_behind(self, reached: int) -> None:
        """Everything up to a time was given, so that what comes next is later than that."""
        promise = ResumeToken.high_water_mark(to_timestamp(reached + 1), self._version)
        self.promise = max(self.position, promise)
