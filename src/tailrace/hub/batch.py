"""What a subscriber gets when it polls: events in a row, and where to go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.token.resume_token import ResumeToken


@dataclass(frozen=True, slots=True)
class Batch:
    """Some events in a row, or none, and the position behind them."""

    events: list[Event]
    position: ResumeToken
    elements: bytes = field(default=b"", repr=False)
    """The events as elements of a BSON array; subscribers that are side by side share these bytes."""
    vector: bytes = field(default=b"", repr=False)
    """The positions of all shards, where one position is not enough: an element for the resume token."""

    token: bytes = field(init=False, repr=False)
    """Where to resume after the whole batch, as BSON."""

    def __post_init__(self) -> None:
        token = self.position.to_bson()
        object.__setattr__(self, "token", raw.append(token, self.vector) if self.vector else token)

    @classmethod
    def encoded(cls, events: list[Event], position: ResumeToken, vector: bytes = b"") -> Batch:
        """Make a batch with its events as the elements of an array, for whoever sends them on."""
        return cls(events, position, _elements(events), vector)


def _elements(events: list[Event]) -> bytes:
    count = len(events)
    while len(_NAMES) < count:
        _NAMES.append(b"\x03%d\x00" % len(_NAMES))
    parts = [b""] * (2 * count)
    parts[::2] = _NAMES[:count]
    parts[1::2] = [event.raw for event in events]
    return b"".join(parts)


_NAMES: Final[list[bytes]] = []
"""How the elements of an array begin, by number; as many as were ever needed."""
