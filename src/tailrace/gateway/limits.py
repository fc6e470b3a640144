"""How much of the gateway one address or one user may have, and how often somebody may guess a password."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.errors import StreamRefused
from tailrace.retry import RetryPolicy

_POLICY: Final = RetryPolicy(first=1.0, longest=60.0)
_SECONDS_TO_REMEMBER: Final = 900.0
_MOST_REMEMBERED: Final = 10_000
_MORE_FOR_AN_ADDRESS: Final = 5
"""Behind one address there may be several users who mistype; a user is counted apart for each address."""


def refused(message: str) -> StreamRefused:
    """Give the refusal of what is over a limit, with the code that servers have for too much load."""
    return StreamRefused(message, server_code=462)


class Shares:
    """Counts things by whom they belong to; 0 is no limit."""

    def __init__(self, limit: int, noun: str) -> None:
        self._limit = limit
        self._noun = noun
        self._counts: Counter[str] = Counter()

    def take(self, owners: Iterable[str]) -> None:
        """Count one more of these owners, or refuse it."""
        owners = tuple(owners)
        self.check(owners)
        self._counts.update(owners)

    def check(self, owners: Iterable[str]) -> None:
        """Refuse one more of these owners, if they have enough."""
        for owner in owners:
            if self._limit and self._counts[owner] >= self._limit:
                raise refused(f"{owner} has {self._counts[owner]} {self._noun} already, as many as one may have here")

    def give(self, owners: Iterable[str]) -> None:
        """Count one less."""
        for owner in owners:
            self._counts[owner] -= 1
            if self._counts[owner] <= 0:
                del self._counts[owner]


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0


class LoginAttempts:
    """Failed logins of an address, and of a user at an address: after some, the next has to wait, each time longer."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def seconds_to_wait(self, address: str, user: str) -> float:
        """Return how long nobody may log in from there, or as this user from there; 0 is not at all."""
        waits = [self._pause(address, ""), self._pause(address, user)]
        return max(waits)

    def failed(self, address: str, user: str) -> None:
        """Count a failed login."""
        for key in {(address, ""), (address, user)}:
            found = self._failures.setdefault(key, _Failures())
            found.count = found.count + 1 if self._clock() - found.last < _SECONDS_TO_REMEMBER else 1
            found.last = self._clock()
            self._failures.move_to_end(key)
        while len(self._failures) > _MOST_REMEMBERED:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, user: str) -> None:
        """Forget the failures of a user who knows the password; those of the address count on."""
        if user:  # without a name it is the address
            self._failures.pop((address, user), None)

    def _pause(self, address: str, user: str) -> float:
        found = self._failures.get((address, user))
        limit = self._limit if user else self._limit * _MORE_FOR_AN_ADDRESS
        if not self._limit or found is None or found.count < limit:
            return 0.0
        pause = _POLICY.longest_pause(found.count - limit)
        return max(0.0, found.last + pause - self._clock())
