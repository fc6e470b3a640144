"""The fail points with which drivers test themselves, for commands that come to the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Document = Mapping[str, Any]

FAIL_COMMAND: Final = "failCommand"
FAIL_GET_MORE: Final = "failGetMoreAfterCursorCheckout"


@dataclass(slots=True)
class FailPoint:
    """How often to fail which commands, and how."""

    commands: tuple[str, ...]
    times: float
    skip: int
    data: Document
    knows_cursor: bool
    """Whether the command has got so far that its cursor is known, and with it that it is a change stream's."""

    def hits(self, command: str, app_name: str) -> bool:
        """Return whether this command fails, and count it."""
        if not self.times or command not in self.commands or self.data.get("appName", app_name) != app_name:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(slots=True)
class FailPoints:
    """`failCommand`, and the one that fails reads of an open cursor; off until they are configured."""

    _set: dict[str, FailPoint] = field(default_factory=dict)

    @property
    def are_set(self) -> bool:
        """Whether any was ever configured."""
        return bool(self._set)

    @staticmethod
    def knows(command: Document) -> bool:
        """Return whether a command configures a fail point that the gateway has, and is well-formed."""
        mode, data = command.get("mode", "off"), command.get("data", {})
        is_mode = mode in ("off", "alwaysOn") if isinstance(mode, str) else _is_count(mode)
        is_data = isinstance(data, Mapping) and isinstance(data.get("failCommands", []), list)
        return command["configureFailPoint"] in (FAIL_COMMAND, FAIL_GET_MORE) and is_mode and is_data

    def configure(self, command: Document) -> None:
        """Take a `configureFailPoint` command: `mode` is "off", "alwaysOn", {times: n} or {skip: n}."""
        name, mode, data = command["configureFailPoint"], command.get("mode", "off"), command.get("data", {})
        commands = ("getMore",) if name == FAIL_GET_MORE else tuple(data.get("failCommands", ()))
        skip, times = 0, float("inf") if mode == "alwaysOn" else 0.0
        if isinstance(mode, Mapping):
            skip, times = int(mode.get("skip", 0)), float(mode.get("times", "inf"))
        self._set[name] = FailPoint(commands, times, skip, data, knows_cursor=name == FAIL_GET_MORE)

    def hit(self, command: str, app_name: str) -> FailPoint | None:
        """Give the fail point that this command runs into, if there is one."""
        for point in self._set.values():
            if point.hits(command, app_name):
                return point
        return None


def _is_count(mode: object) -> bool:
    return isinstance(mode, Mapping) and all(
        isinstance(count, int) for name, count in mode.items() if name in ("skip", "times")
    )
