"""How much the producer has delivered, asked for over its own endpoint."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass

_SECONDS_TO_ANSWER = 0.5


@dataclass(frozen=True, slots=True)
class Beat:
    """What the producer said at one look."""

    state: str
    events: int
    events_per_second: float


class Pulse:
    """Looks at a producer from time to time."""

    def __init__(self, endpoint: str) -> None:
        self._url = f"{endpoint}/state"
        self._last: tuple[float, int] | None = None

    def look(self) -> Beat | None:
        """Give the state, and the rate since the look before; None when nobody answers."""
        try:
            with urllib.request.urlopen(self._url, timeout=_SECONDS_TO_ANSWER) as answer:
                said = json.load(answer)
        except (OSError, ValueError):
            self._last = None
            return None
        now, events = time.monotonic(), int(said["events"])
        before, self._last = self._last, (now, events)
        # A producer that was started again counts from nothing.
        grown = max(0, events - before[1]) / (now - before[0]) if before and now > before[0] else 0.0
        return Beat(str(said["state"]), events, grown)
