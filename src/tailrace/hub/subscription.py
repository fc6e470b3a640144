"""A subscriber: it reads by itself from where it wants to start, then in a channel, side by side with others.

The step from one to the other is exact, and so is the step back of a subscriber that is too slow for its channel.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tailrace.engine.options import StreamSpec
from tailrace.engine.stream import MAX_BATCH_BYTES
from tailrace.engine.user_stages import are_quick
from tailrace.hub.batch import Batch
from tailrace.hub.event_log import EventLog, Reading
from tailrace.token.resume_token import ResumeToken


class Standing(NamedTuple):
    """Where a stream stands."""

    position: ResumeToken
    """Behind the last event that was given, or further."""
    high_water_mark: ResumeToken
    """Nothing below it will come any more: the position, or further when all that happened since is known."""


class OwnReading(Protocol):
    """How a subscriber reads while it is in no channel: a scan of one shard, or a merge of several."""

    @property
    def standing(self) -> Standing:
        """Where it stands."""

    @property
    def is_closed(self) -> bool:
        """Whether the stream has ended."""

    @property
    def is_catching_up(self) -> bool:
        """Whether an oplog is read by a scan of this stream's own."""

    @property
    def has_data(self) -> bool:
        """Whether the next `poll` may find something."""

    @property
    def channels(self) -> tuple[EventLog, ...]:
        """The channels that it reads from."""

    def poll(self, max_events: int | None, max_bytes: int) -> Batch:
        """Give the events that are there now."""

    def join(self, reader: Subscription[Any]) -> tuple[EventLog, int] | None:
        """Find the shared channel and the place in it that was read up to; None when it lacks what comes next."""

    def restart(self, position: ResumeToken) -> None:
        """Read again from a position, because the channel has lost what comes behind it."""

    def close(self) -> None:
        """Stop; a second call does nothing."""

    def at_end(self, position: ResumeToken, reading: Reading) -> Standing:
        """Return where a stream stands that has been given all that a channel has; `reading` were the last ones."""

    def after_invalidate(self, position: ResumeToken, reading: Reading) -> ResumeToken:
        """Return where a stream stands that has ended with its channel."""

    def has_reached_opening(self, high_water_mark: ResumeToken) -> bool:
        """Whether all that had happened when it was opened has been read; a router never waits for that."""


class Owner(Protocol):
    """The hub that a subscriber and its channel belong to."""

    def leave(self, reader: Any, channel: Any) -> None:
        """Take a reader out of a channel."""

    def forget(self, reader: Any) -> None:
        """Let a reader go."""


class _Step(NamedTuple):
    """What reading on from a place in a channel gives, the same to all who stand there."""

    batch: Batch
    end: int
    high_water_mark: ResumeToken


R_co = TypeVar("R_co", bound=OwnReading, covariant=True)


class Subscription(Generic[R_co]):
    """A change stream. Not for several threads at once."""

    def __init__(self, owner: Owner, spec: StreamSpec, own: R_co) -> None:
        self.own = own
        self.position, self.high_water_mark = own.standing
        self._owner = owner
        self._spec = spec
        self.channel: EventLog | None = None
        """The channel it reads from; None while it reads by itself."""
        self.index = 0
        """Where in the channel it stands."""
        self.is_closed = False

    @property
    def namespace(self) -> str:
        """What it watches, as a server's cursor names it."""
        return self._spec.scope.namespace

    @property
    def is_costly(self) -> bool:
        """Whether it has stages that may take their time."""
        return not are_quick(self._spec.stages)

    @property
    def is_catching_up(self) -> bool:
        """Whether an oplog is read by a scan of its own."""
        return self.own.is_catching_up

    @property
    def has_data(self) -> bool:
        """Whether the next `poll` may find something, as far as is known without reading."""
        channel = self.channel
        if channel is None:
            return self.own.has_data
        return not channel.has(self.index) or channel.has_data or channel.end > self.index

    @property
    def is_caught_up(self) -> bool:
        """Whether it has read all that the channel has made, as those have who stand beside it."""
        return self.channel is not None and self.channel.end == self.index

    @property
    def is_idle(self) -> bool:
        """Whether it stands at the end of a channel that has nothing to give, nor to say: no need to `poll`."""
        channel = self.channel
        if channel is None or self.is_closed or channel.end != self.index:
            return False
        return channel.has(self.index) and not (channel.has_data or channel.is_ended or channel.error is not None)

    @property
    def has_reached_opening(self) -> bool:
        """Whether all that had happened when it was opened has been read; a router never waits for that."""
        return self.own.has_reached_opening(self.high_water_mark)

    @property
    def channels(self) -> tuple[EventLog, ...]:
        """The channels whose data it waits for."""
        return self.own.channels if self.channel is None else (self.channel,)

    def poll(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES) -> Batch:
        """Give the events that are there now, without waiting for more.

        After an invalidate, and after an error, the subscription is closed.
        """
        if self.is_closed or max_events == 0:
            return Batch([], self.position)
        try:
            if self.channel is not None:
                self.channel.make_events()
                batch = self._read_channel(self.channel, max_events, max_bytes, is_last=True)
                if batch is not None:
                    return batch
                self._leave()
                self.own.restart(self.position)
            return self._read_by_itself(max_events, max_bytes)
        except BaseException:
            self.close()
            raise

    def poll_made(self, max_events: int | None, max_bytes: int) -> Batch | None:
        """Give events that are made already, from memory alone; None when it takes a `poll` to go on, or to end."""
        if self.is_closed or max_events == 0:
            return Batch([], self.position)
        channel = self.channel
        return None if channel is None else self._read_channel(channel, max_events, max_bytes, is_last=False)

    def join(self) -> None:
        """Go over to the shared channel, when that has everything behind what was given."""
        joined = self.own.join(self)
        if joined is not None:
            self.channel, self.index = joined

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self.is_closed = True
        if self.channel is None:
            self.own.close()
        self._leave()
        self._owner.forget(self)

    def _read_by_itself(self, max_events: int | None, max_bytes: int) -> Batch:
        batch = self.own.poll(max_events, max_bytes)
        self.position, self.high_water_mark = self.own.standing
        if self.own.is_closed:
            self.close()
        else:
            self.join()
        return batch

    def _leave(self) -> None:
        if self.channel is not None:
            self._owner.leave(self, self.channel)
            self.channel = None

    def _read_channel(
        self, channel: EventLog, max_events: int | None, max_bytes: int, *, is_last: bool
    ) -> Batch | None:
        """Read on in the channel; whoever stood at the same place before has made the batch already.

        What has ended the channel is left to `poll`, unless this is it (`is_last`): the reader then hangs up.
        """
        key = (self.index, max_events or 0, max_bytes, channel.end)
        known: _Step | None = channel.shared(key)
        if known is not None and channel.has(self.index):
            self.index, self.position, self.high_water_mark = known.end, known.batch.position, known.high_water_mark
            return known.batch
        reading = channel.read(self.index, max_events, max_bytes)
        if reading is None or ((reading.is_ended or reading.error is not None) and not is_last):
            return None
        events = reading.events
        self.index += len(events)
        if events:
            self.position = self.high_water_mark = ResumeToken.parse(events[-1].token)
        if self.index == reading.end:
            self._move_to_end(reading, is_full=len(events) == max_events)
        batch = Batch.encoded(events, self.position)
        if events and not self.is_closed and reading.error is None:
            channel.share(key, _Step(batch, self.index, self.high_water_mark), len(batch.elements))
        return batch

    def _move_to_end(self, reading: Reading, *, is_full: bool) -> None:
        """Stand where the channel stands.

        An error comes in place of the batch in which it was met, as on a server; a batch that was full before is given.
        """
        if reading.is_ended:
            self.position = self.own.after_invalidate(self.position, reading)
            self.close()
        elif reading.error is not None:
            if not is_full:
                raise copy(reading.error)
        else:
            self.position, self.high_water_mark = self.own.at_end(self.position, reading)
