"""How long, and at what pace, an interrupted stream tries to resume."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from tailrace.retry import RetryPolicy

POLICY: Final = RetryPolicy(first=0.05, longest=5.0)


class ResumeBudget:
    """Counts the failures of one outage and says when the next attempt may be made.

    The specification's budget is one attempt (`limit` None). With a limit, attempts go on until so much
    time has passed since the first failure; the first comes at once, later ones after pauses that double
    up to five seconds, each shortened by chance so that many clients do not come back at the same instant.
    """

    def __init__(self, limit: timedelta | None, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._limit = None if limit is None else limit.total_seconds()
        self._clock = clock
        self._chance = chance
        self._began: float | None = None
        self._failures = 0

    def failed(self) -> None:
        """Note a failure."""
        self._failures += 1
        if self._began is None:
            self._began = self._clock()

    def succeeded(self) -> None:
        """Note that a getMore was answered: the outage is over."""
        self._began = None
        self._failures = 0

    def spent(self) -> None:
        """Note that the user was told of the outage: the next call begins a new budget."""
        self.succeeded()

    @property
    def is_limited(self) -> bool:
        """Whether time is the limit, and not the specification's one attempt."""
        return self._limit is not None

    @property
    def may_retry(self) -> bool:
        """Whether an attempt that failed may be followed by another."""
        if self._limit is None or self._began is None:
            return False
        return self._clock() - self._began < self._limit

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        if self._limit is None or self._failures < 2:
            return 0.0
        return POLICY.pause(self._failures - 2, self._chance)
