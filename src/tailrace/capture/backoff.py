"""How long to wait between attempts, and when to give up: pauses that double, with jitter and a budget."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The pace of attempts: the longest pause of attempt n is `first * factor**n`, up to `longest`."""

    first: float = 0.1
    longest: float = 10.0
    factor: float = 2.0
    budget: float = 600.0
    """Seconds from the first failure of an outage after which the error is believed and raised."""


DEFAULT_POLICY = BackoffPolicy()


class Backoff:
    """Counts the failures of one outage.

    A pause is drawn between half of the longest and the longest, so that many processes that lost the same server do
    not come back at the same instant. Progress ends the outage and gives the whole budget back.
    """

    def __init__(
        self,
        policy: BackoffPolicy = DEFAULT_POLICY,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._began: float | None = None
        self.failures = 0

    @property
    def failing(self) -> bool:
        """Whether an outage goes on."""
        return self._began is not None

    def progressed(self) -> None:
        """Note that something succeeded: the outage is over."""
        self._began = None
        self.failures = 0

    def failed(self) -> float | None:
        """Note a failure; give the seconds to wait before the next attempt, or None when the budget is spent."""
        now = self._clock()
        if self._began is None:
            self._began = now
        policy = self._policy
        longest = min(policy.longest, policy.first * policy.factor ** min(self.failures, 64))
        self.failures += 1
        pause = longest * (0.5 + 0.5 * self._chance())
        return pause if now - self._began + pause <= policy.budget else None
