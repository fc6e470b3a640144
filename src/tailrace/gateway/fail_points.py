"""`failCommand`, the fail point with which drivers test themselves, for commands that come to the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]


@dataclass(slots=True)
class FailCommand:
    """The one fail point, off until it is configured."""

    _times: float = 0
    _skip: int = 0
    _data: Document = field(default_factory=dict)

    def configure(self, command: Document) -> None:
        """Take a `configureFailPoint` command: `mode` is "off", "alwaysOn", {times: n} or {skip: n}."""
        mode = command.get("mode", "off")
        self._data = command.get("data", {})
        self._skip = 0
        if isinstance(mode, Mapping):
            self._skip = int(mode.get("skip", 0))
            self._times = float(mode.get("times", "inf"))
        else:
            self._times = float("inf") if mode == "alwaysOn" else 0

    def hit(self, command: str, app_name: str) -> Document | None:
        """Give what shall happen to this command; None when nothing shall."""
        if not self._times or command not in self._data.get("failCommands", ()):
            return None
        if self._data.get("appName", app_name) != app_name:
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._times -= 1
        return self._data
