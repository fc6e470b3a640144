"""One subscriber: first a scan of its own from where it wants to start, then a place in a shared channel.

The step from one to the other is exact: the scan has given everything up to a time, and the channel has every event
behind that time. A subscriber that is too slow for its channel takes the step back, to a scan from its position.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.engine.options import StreamSpec, read_token
from tailrace.engine.stream import MAX_BATCH_BYTES, EngineStream, to_int, to_timestamp
from tailrace.hub.channel import encode_elements
from tailrace.token.resume_token import ResumeToken

if TYPE_CHECKING:
    from tailrace.hub.hub import AnyChannel, Hub
    from tailrace.hub.reader import CatchUpReader


@dataclass(frozen=True, slots=True)
class Batch:
    """Some events in a row, or none, and the position behind them."""

    events: list[Event]
    position: ResumeToken
    elements: bytes = field(repr=False)
    """The events as elements of a BSON array; subscribers that are side by side share these bytes."""
    vector: bytes = field(default=b"", repr=False)
    """The positions of all shards, where one position does not tell enough: an element for the resume token."""

    resume_token: bytes = field(init=False, repr=False)
    """Where to resume after the whole batch, as BSON."""

    def __post_init__(self) -> None:
        token = self.position.to_bson()
        object.__setattr__(self, "resume_token", raw.append(token, self.vector) if self.vector else token)


class _Step(NamedTuple):
    """What reading on from a place in a channel gives, the same to all who stand there."""

    batch: Batch
    behind: int
    promise: ResumeToken


class Subscription:
    """A change stream on a hub. Not for several threads at once."""

    def __init__(self, hub: Hub, spec: StreamSpec, latest: int, now: datetime) -> None:
        self._hub = hub
        self._spec = spec
        self._latest = latest
        self._now = now
        self._channel: AnyChannel | None = None
        self._index = 0
        self.is_closed = False
        self._scan, self._reader = self._open_scan(spec)
        self._version = self._scan.token_version
        self._spec = replace(spec, v2_tokens=self._version == 2)
        self.position = self._scan.post_batch_resume_token
        self.promise = self.position
        """Nothing below it will come any more: the position, or further when all that happened since is known."""
        self._join()

    @property
    def channel(self) -> AnyChannel | None:
        """The channel it reads from; None while it catches up with a scan of its own."""
        return self._channel

    @property
    def index(self) -> int:
        """Where in the channel it stands."""
        return self._index

    @property
    def namespace(self) -> str:
        """What it watches, as a server's cursor names it."""
        return self._spec.scope.namespace

    @property
    def position_time(self) -> int:
        """The cluster time of the position."""
        return to_int(self.position.cluster_time)

    @property
    def is_shared(self) -> bool:
        """Whether the next `poll` reads from a channel, and so from memory alone."""
        return self._channel is not None and self._channel.has(self._index)

    @property
    def is_catching_up(self) -> bool:
        """Whether it still reads by a scan of its own."""
        return self._channel is None

    @property
    def has_news(self) -> bool:
        """Whether the next `poll` may find something, as far as can be told without looking."""
        channel = self._channel
        if channel is None or not channel.has(self._index):
            return True
        return channel.has_news or channel.end > self._index or channel.fed > channel.reached

    @property
    def channels(self) -> tuple[AnyChannel, ...]:
        """The channel it reads from, if it has one."""
        return () if self._channel is None else (self._channel,)

    def poll(
        self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES, *, make_events: bool = True
    ) -> Batch:
        """Give the events that are there now, without waiting for more; maybe only those that are made already.

        After an invalidate, and after an error, the subscription is closed.
        """
        if self.is_closed or max_events == 0:
            return Batch([], self.position, b"")
        try:
            if self._channel is not None:
                if make_events or not self._channel.has_news:
                    self._channel.make_events()
                batch = self._read_channel(self._channel, max_events, max_bytes)
                if batch is not None:
                    return batch
                self._fall_back()
            return self._read_scan(max_events, max_bytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self.is_closed = True
        if self._scan is not None:
            self._scan.close()
        if self._channel is not None:
            self._hub.leave(self, self._channel)
            self._channel = None
        self._hub.forget(self)

    # --- by itself

    def _open_scan(self, spec: StreamSpec) -> tuple[EngineStream, CatchUpReader]:
        return self._hub.open_scan(spec, self._latest, self._now)

    def _read_scan(self, max_events: int | None, max_bytes: int) -> Batch:
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

    def _fall_back(self) -> None:
        """Scan from the position, because the channel has lost what comes behind it."""
        if self._channel is not None:
            self._hub.leave(self, self._channel)
            self._channel = None
        options = replace(
            self._spec.options, start_after=self.position, resume_after=None, start_at_operation_time=None
        )
        start = read_token(options, self._hub.dialect)
        self._scan, self._reader = self._open_scan(replace(self._spec, options=options, start_token=start))
        self._spec = self._scan.spec

    # --- with others

    def _read_channel(self, channel: AnyChannel, max_events: int | None, max_bytes: int) -> Batch | None:
        """Read on in the channel; whoever stood at the same place before has made the batch already."""
        key = (self._index, max_events or 0, max_bytes, channel.end, channel.reached)
        known: _Step | None = channel.shared(key)
        if known is not None and channel.has(self._index):
            self._index, self.position, self.promise = known.behind, known.batch.position, known.promise
            return known.batch
        index = self._index
        events = channel.read(index, max_events, max_bytes)
        if events is None:
            return None
        self._index += len(events)
        if events:
            self.position = self.promise = ResumeToken.parse(events[-1].token)
        is_last = self._index == channel.end
        if is_last:
            self._move_to_end(channel, events)
        batch = Batch(events, self.position, encode_elements(events))
        if events and not self.is_closed and channel.error is None:
            channel.share(key, _Step(batch, self._index, self.promise), len(batch.elements))
        return batch

    def _move_to_end(self, channel: AnyChannel, events: list[Event]) -> None:
        """Stand where the channel stands; whatever ended it is told once all its events have been given."""
        if channel.is_ended:
            if self._hub.dialect.ends_at_invalidate:
                self.position = channel.end_position
            self.close()
        elif channel.error is not None:
            if not events:
                raise copy(channel.error)
        else:
            if channel.reached > self.position_time:
                self.position = ResumeToken.high_water_mark(to_timestamp(channel.reached), self._version)
            self._promise_behind(channel.reached)

    def _promise_behind(self, reached: int) -> None:
        """Everything up to a time was given, so that what comes next is later than that."""
        promise = ResumeToken.high_water_mark(to_timestamp(reached + 1), self._version)
        self.promise = max(self.position, promise)
