"""Drop what was delivered before, when a stream has to start again at a time instead of a token."""

from __future__ import annotations

from tailrace.driver import token_of
from tailrace.token import ResumeToken


class DeliveredFilter:
    """Lets through only what comes after a position.

    Tokens of one version compare as their keys do. Those of another version (after an up- or downgrade of the
    server) are compared by time alone, and events of the very same time are let through: twice is better than never.
    """

    def __init__(self, delivered: bytes) -> None:
        self._last = ResumeToken.parse(delivered)
        self.dropped = 0
        self.passed = False
        """Whether the stream is past what was delivered before: nothing has to be dropped from there on."""

    def keep(self, events: list[bytes], position: bytes | None = None) -> list[bytes]:
        """Give the events that were not delivered before; `position` is where the stream stands after them."""
        if self.passed:
            return events
        for index, event in enumerate(events):
            if not self._is_delivered(ResumeToken.parse(token_of(event))):
                self.passed = True
                self.dropped += index
                return events[index:]
        self.dropped += len(events)
        self.passed = position is not None and ResumeToken.parse(position).cluster_time > self._last.cluster_time
        return []

    def _is_delivered(self, token: ResumeToken) -> bool:
        if token.key[9:11] == self._last.key[9:11]:  # the version, which follows the time
            return token <= self._last
        return token.cluster_time < self._last.cluster_time
