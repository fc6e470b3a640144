"""How much the producer has delivered, asked for over its own endpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tailrace.errors import TailraceError
from tailrace.http_client import fetch

_SECONDS_TO_ANSWER = 0.5


@dataclass(frozen=True, slots=True)
class Beat:
    """What the producer reported at one poll."""

    state: str
    events: int
    events_per_second: float


class Pulse:
    """Polls a producer from time to time."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._last: tuple[float, int] | None = None

    def poll(self) -> Beat | None:
        """Give the state, and the rate since the poll before; None when nobody answers."""
        try:
            report = fetch(self._endpoint, "/state", timeout=_SECONDS_TO_ANSWER).json()
            now, events = time.monotonic(), int(report["events"])
        except (TailraceError, KeyError, TypeError):
            self._last = None
            return None
        before, self._last = self._last, (now, events)
        # A producer that was started again counts from nothing.
        grown = max(0, events - before[1]) / (now - before[0]) if before and now > before[0] else 0.0
        return Beat(str(report["state"]), events, grown)
