"""How a subscriber reads: by itself from where it wants to start, then in a channel, side by side with others.

The step from one to the other is exact, and so is the step back of a subscriber that is too slow for its channel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, NamedTuple, Protocol

from tailrace.engine.options import StreamSpec
from tailrace.engine.stream import MAX_BATCH_BYTES, to_int
from tailrace.engine.user_stages import are_quick
from tailrace.hub.batch import Batch
from tailrace.hub.channel import encode_elements
from tailrace.hub.event_log import EventLog, Reading
from tailrace.token.resume_token import ResumeToken


class _Step(NamedTuple):
    """What reading on from a place in a channel gives, the same to all who stand there."""

    batch: Batch
    behind: int
    promise: ResumeToken


class Home(Protocol):
    """The hub that a reader and its channel belong to."""

    def leave(self, reader: Any, channel: Any) -> None:
        """Take a reader out of a channel."""

    def forget(self, reader: Any) -> None:
        """Let a reader go."""


class ChannelReader(ABC):
    """A change stream. Not for several threads at once."""

    position: ResumeToken
    promise: ResumeToken
    """Nothing below it will come any more: the position, or further when all that happened since is known."""

    def __init__(self, home: Home, spec: StreamSpec) -> None:
        self._home = home
        self._spec = spec
        self._channel: EventLog | None = None
        self._index = 0
        self.is_closed = False

    @property
    def channel(self) -> EventLog | None:
        """The channel it reads from; None while it catches up by itself."""
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
    def is_costly(self) -> bool:
        """Whether it has stages that may take their time."""
        return not are_quick(self._spec.stages)

    @property
    def is_shared(self) -> bool:
        """Whether the next `poll` reads from a channel, and so from memory alone."""
        return self._channel is not None and self._channel.has(self._index)

    @property
    def is_catching_up(self) -> bool:
        """Whether it still reads by itself."""
        return self._channel is None

    @property
    def has_news(self) -> bool:
        """Whether the next `poll` may find something, as far as can be told without looking."""
        channel = self._channel
        if channel is None or not channel.has(self._index):
            return True
        return channel.has_news or channel.end > self._index

    @property
    def is_level(self) -> bool:
        """Whether it has read all that the channel has made, as those have who stand beside it."""
        return self._channel is not None and self._channel.end == self._index

    @property
    def has_reached_opening(self) -> bool:
        """Whether all that had happened when it was opened has been read; a router never waits for that."""
        return True

    @property
    def channels(self) -> tuple[EventLog, ...]:
        """The channels whose news it waits for."""
        return () if self._channel is None else (self._channel,)

    def poll(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES) -> Batch:
        """Give the events that are there now, without waiting for more.

        After an invalidate, and after an error, the subscription is closed.
        """
        if self.is_closed or max_events == 0:
            return Batch([], self.position, b"")
        try:
            if self._channel is not None:
                self._channel.make_events()
                batch = self._read_channel(self._channel, max_events, max_bytes, is_last=True)
                if batch is not None:
                    return batch
                self._leave()
                self._read_by_itself_again()
            return self._read_by_itself(max_events, max_bytes)
        except BaseException:
            self.close()
            raise

    def poll_made(self, max_events: int | None, max_bytes: int) -> Batch | None:
        """Give events that are made already, from memory alone; None when it takes a `poll` to go on, or to end."""
        if self.is_closed or max_events == 0:
            return Batch([], self.position, b"")
        channel = self._channel
        return None if channel is None else self._read_channel(channel, max_events, max_bytes, is_last=False)

    def close(self) -> None:
        """Stop; a second call does nothing."""
        self.is_closed = True
        self._end_reading()
        self._leave()
        self._home.forget(self)

    # --- by itself

    @abstractmethod
    def _read_by_itself(self, max_events: int | None, max_bytes: int) -> Batch:
        """Read on, and go over to the channel once that has everything that comes next."""

    @abstractmethod
    def _read_by_itself_again(self) -> None:
        """Go on from the position, because the channel has lost what comes behind it."""

    @abstractmethod
    def _end_reading(self) -> None:
        """Stop to read by itself, if it does."""

    # --- with others

    def _leave(self) -> None:
        if self._channel is not None:
            self._home.leave(self, self._channel)
            self._channel = None

    def _read_channel(
        self, channel: EventLog, max_events: int | None, max_bytes: int, *, is_last: bool
    ) -> Batch | None:
        """Read on in the channel; whoever stood at the same place before has made the batch already.

        What has ended the channel is left to `poll`, unless this is it (`is_last`): the reader then hangs up.
        """
        key = (self._index, max_events or 0, max_bytes, channel.end)
        known: _Step | None = channel.shared(key)
        if known is not None and channel.has(self._index):
            self._index, self.position, self.promise = known.behind, known.batch.position, known.promise
            return known.batch
        reading = channel.read(self._index, max_events, max_bytes)
        if reading is None or ((reading.is_ended or reading.error is not None) and not is_last):
            return None
        events = reading.events
        self._index += len(events)
        if events:
            self.position = self.promise = ResumeToken.parse(events[-1].token)
        if self._index == reading.end:
            self._move_to_end(reading, is_full=len(events) == max_events)
        batch = Batch(events, self.position, encode_elements(events))
        if events and not self.is_closed and reading.error is None:
            channel.share(key, _Step(batch, self._index, self.promise), len(batch.elements))
        return batch

    def _move_to_end(self, reading: Reading, *, is_full: bool) -> None:
        """Stand where the channel stands.

        An error comes in place of the batch in which it was met, as on a server; a batch that was full before is given.
        """
        if reading.is_ended:
            self._stand_behind_the_last(reading)
            self.close()
        elif reading.error is not None:
            if not is_full:
                raise copy(reading.error)
        else:
            self._stand_at_the_end(reading)

    @abstractmethod
    def _stand_behind_the_last(self, reading: Reading) -> None:
        """Take the position of a stream that has ended."""

    @abstractmethod
    def _stand_at_the_end(self, reading: Reading) -> None:
        """Take the position of the channel, all of whose events have been given; the last ones just now."""
