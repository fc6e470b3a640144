"""Log lines that clients or data cause: who sends nonsense all day long must not fill the log."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tailrace.logs import get_logger

_LINES: Final = 20
_SECONDS: Final = 10.0
_LONGEST: Final = 200


class RateLimitedLog:
    """Writes at most so many lines of each kind in some seconds; the next one says how many were left out."""

    def __init__(
        self, *, lines: int = _LINES, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.suppressed = 0
        """How many lines were left out, of all kinds."""
        self._log = get_logger()
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._begun: dict[str, float] = {}
        self._written: dict[str, int] = {}
        self._suppressed: dict[str, int] = {}

    def warning(self, event: str, **facts: Any) -> None:
        """Write a warning, unless there were too many like it lately."""
        self._write(self._log.warning, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        """Write what is nothing to worry about, with the same limit."""
        self._write(self._log.info, event, facts)

    def _write(self, write: Callable[..., object], event: str, facts: dict[str, Any]) -> None:
        now = self._clock()
        if now - self._begun.get(event, -self._seconds) >= self._seconds:
            self._begun[event], self._written[event] = now, 0
        if self._written[event] >= self._lines:
            self._suppressed[event] = self._suppressed.get(event, 0) + 1
            self.suppressed += 1
            return
        self._written[event] += 1
        suppressed = self._suppressed.pop(event, 0)
        facts = {name: fact[:_LONGEST] if isinstance(fact, str) else fact for name, fact in facts.items()}
        write(event, **facts, **({"suppressed": suppressed} if suppressed else {}))


def describe(error: BaseException) -> str:
    """Say in one line what went wrong and where; a client's bytes may stand in the message, so it is cut short."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[: _LONGEST // 2]}{where}"
