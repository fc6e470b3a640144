"""What a subscriber gets when it asks: events in a row, and where to go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace import raw
from tailrace.engine.event import Event
from tailrace.token.resume_token import ResumeToken


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
