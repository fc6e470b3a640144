"""The audit trail of a position: every acquisition, release and change that has a reason, a line each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from tailrace.capture.positions.position import Position
from tailrace.errors import PositionInvalid
from tailrace.logs import get_logger

_log = get_logger("tailrace.capture")


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the audit trail: who did what, when and why."""

    at: datetime
    who: str
    what: str
    """acquired, taken-over, released, moved, deleted or discarded."""
    why: str
    epoch: int
    position: Position | None
    """The position after the change."""

    def to_json(self) -> dict[str, Any]:
        """Give the form that is stored and shown."""
        return {
            "at": self.at.isoformat(),
            "who": self.who,
            "what": self.what,
            "why": self.why,
            "epoch": self.epoch,
            "position": self.position.to_json() if self.position else None,
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Change:
        """Read what `to_json` gave."""
        position = Position.from_json(form["position"]) if form["position"] else None
        at = datetime.fromisoformat(form["at"])
        return cls(at, form["who"], form["what"], form["why"], form["epoch"], position)

    @classmethod
    def from_bytes(cls, line: bytes) -> Change | None:
        """Read a line as it is stored; None when it cannot be read."""
        try:
            return cls.from_json(orjson.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, PositionInvalid) as error:
            _log.warning("trail_line_unreadable", error=str(error)[:200])
            return None
