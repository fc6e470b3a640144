"""Cut the stream at the times where rows of a snapshot belong."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from bson.timestamp import Timestamp

from tailrace.capture.reader import Portion
from tailrace.capture.source import token_time
from tailrace.driver import token_of


def event_time(event: bytes) -> Timestamp:
    """Give the cluster time of an event."""
    return token_time(token_of(event))


def cut(portion: Portion, at: Timestamp) -> tuple[Portion | None, Portion | None]:
    """Cut a portion behind the last event of a time: what comes up to there, and what comes later."""
    events = portion.events
    if not events or event_time(events[-1]) <= at:
        return portion, None
    place = bisect_right(events, at, key=event_time)
    later = replace(portion, events=events[place:])
    if not place:
        return None, later
    return replace(portion, events=events[:place], token=token_of(events[place - 1]), caught_up=False), later


class Progress:
    """How far the stream was delivered, as rows of a snapshot need to know it."""

    def __init__(self) -> None:
        self._time: Timestamp | None = None
        self._caught_up = False
        self._next_event: Timestamp | None = None

    @property
    def caught_up(self) -> bool:
        """Whether the server had nothing more to give when it was asked last."""
        return self._caught_up

    def delivered(self, portion: Portion) -> None:
        """Note that a portion was given to the sink."""
        if portion.token is not None:
            self._time = token_time(portion.token)
        self._caught_up = portion.caught_up

    def held(self, portion: Portion | None) -> None:
        """Note what waits to be delivered next."""
        self._next_event = event_time(portion.events[0]) if portion and portion.events else None

    def passed(self, at: Timestamp) -> bool:
        """Whether every event up to a time was delivered.

        A position at that very time is not enough, since a transaction has many events of one time; unless the server
        had nothing more to give.
        """
        if self._next_event is not None:
            return self._next_event > at
        if self._time is None:
            return False
        return self._time > at or (self._caught_up and self._time == at)
