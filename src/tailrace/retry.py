"""How long to wait between attempts, and when to give up: pauses that double, with jitter and a budget.

The only place that computes such pauses. Whoever retries has a `RetryPolicy`, and for an outage a `Backoff`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

_MOST_DOUBLINGS: Final = 64
"""Enough for any longest pause; more would not fit a float."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The pace of attempts: the longest pause of attempt n is `first * factor**n`, up to `longest`."""

    first: float = 0.1
    longest: float = 10.0
    factor: float = 2.0
    budget: float = 600.0
    """Seconds from the first failure of an outage after which the error is believed and raised."""

    def longest_pause(self, failures: int) -> float:
        """Give the most seconds to wait after so many failures before the last one."""
        return min(self.longest, self.first * self.factor ** min(failures, _MOST_DOUBLINGS))

    def pause(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Give the seconds to wait, drawn between half of the longest pause and all of it.

        So many processes that lost the same server do not come back at the same instant.
        """
        return self.longest_pause(failures) * (0.5 + 0.5 * chance())


DEFAULT_POLICY = RetryPolicy()


def retried(
    call: Callable[[], T],
    policy: RetryPolicy,
    *,
    is_passing: Callable[[Exception], bool],
    spent: Callable[[Exception], Exception] = lambda error: error,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Make a call again while its error is a passing one, until the budget is spent.

    Any other error is raised as it is; `spent` gives what is raised when the budget is.
    """
    outage = Backoff(policy, clock=clock)
    while True:
        try:
            return call()
        except Exception as error:
            if not is_passing(error):
                raise
            pause = outage.failed()
            if pause is None:
                final = spent(error)
                if final is error:
                    raise
                raise final from error
        sleep(pause)


class Backoff:
    """Counts the failures of one outage; progress ends it and gives the whole budget back."""

    def __init__(
        self,
        policy: RetryPolicy = DEFAULT_POLICY,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._began: float | None = None
        self.failures = 0

    def progressed(self) -> None:
        """Note that something succeeded: the outage is over."""
        self._began = None
        self.failures = 0

    def failed(self) -> float | None:
        """Note a failure; give the seconds to wait before the next attempt, or None when the budget is spent."""
        now = self._clock()
        if self._began is None:
            self._began = now
        pause = self._policy.pause(self.failures, self._chance)
        self.failures += 1
        return pause if now - self._began + pause <= self._policy.budget else None
