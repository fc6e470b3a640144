"""Whether a stream is alive: its position against the server's operation time, never "events seen"."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """What a stream is doing."""

    IDLE = "idle"
    """It keeps up with the server, and there is nothing to deliver."""
    LIVE = "live"
    """It keeps up with the server and delivers events."""
    BEHIND = "behind"
    """It moves, but the server is well ahead."""
    STALLED = "stalled"
    """The server goes on and the position does not."""
    RECOVERING = "recovering"
    """History was lost; a snapshot closes the gap."""
