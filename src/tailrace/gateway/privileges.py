"""Whether users still have the privileges that their streams were opened with.

A server looks at each getMore. Here one question on one connection of a user serves all getMores of that user that
wait for it; it is asked after they came, so that each sees what was revoked before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary


class UserPrivileges:
    """What the upstream says of one user's privileges, to all of the user's connections."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        """How old an answer may be that is used again."""
        self._lock = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        self._answered_at = -float("inf")
        self._answer = b""

    async def now(self, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        """Give an answer to a question that was asked after this call, by this client or by one that waits too."""
        if time.monotonic() - self._answered_at < self._seconds:
            return self._answer
        asked_before = self._asked
        async with self._lock:
            if self._answered > asked_before:
                return self._answer
            self._asked += 1
            number = self._asked
            answer = await ask()
            self._answer, self._answered, self._answered_at = answer, number, time.monotonic()
            return answer


class PrivilegeChecks:
    """The privileges of all users that are connected."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._by_user: WeakValueDictionary[frozenset[str], UserPrivileges] = WeakValueDictionary()

    def of(self, accounts: frozenset[str]) -> UserPrivileges:
        """Give what connections of the same accounts share."""
        found = self._by_user.get(accounts)
        if found is None:
            found = self._by_user[accounts] = UserPrivileges(self._seconds)
        return found
