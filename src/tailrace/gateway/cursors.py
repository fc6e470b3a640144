"""The cursors of all clients, by id: a driver may go on with one on another connection."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.gateway.streams import AnySubscription

if TYPE_CHECKING:
    from tailrace.gateway.sessions import SessionId


@dataclass(slots=True, eq=False)
class Cursor:
    """One open change stream of one client."""

    id: int
    subscription: AnySubscription
    namespace: str
    session: SessionId | None
    """The session that opened it."""
    owner: frozenset[str]
    """The users who opened it, as `user@database`."""
    opened_by: Mapping[str, Any] | None = field(default=None, repr=False)
    """The command, where the upstream is asked again whether it is allowed."""
    checked_at: float = field(default_factory=time.monotonic)
    used_at: float = field(default_factory=time.monotonic)
    in_use: bool = False


class Cursors:
    """All open cursors; those that nobody asks for any more time out."""

    def __init__(self) -> None:
        self._by_id: dict[int, Cursor] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Cursor]:
        return iter(list(self._by_id.values()))

    def open(
        self,
        subscription: AnySubscription,
        namespace: str,
        session: SessionId | None,
        owner: frozenset[str],
        opened_by: Mapping[str, Any] | None = None,
    ) -> Cursor:
        """Give a subscription an id that no upstream cursor has: 62 bits by chance."""
        cursor = Cursor(secrets.randbits(62) | 1, subscription, namespace, session, owner, opened_by)
        self._by_id[cursor.id] = cursor
        return cursor

    def get(self, cursor_id: int) -> Cursor | None:
        """Find a cursor."""
        return self._by_id.get(cursor_id)

    def remove(self, cursor: Cursor) -> None:
        """Forget a cursor; closing its subscription is left to the caller."""
        self._by_id.pop(cursor.id, None)

    def idle_for(self, seconds: float) -> list[Cursor]:
        """Give those that nobody has asked for so long."""
        before = time.monotonic() - seconds
        return [cursor for cursor in self if cursor.used_at < before and not cursor.in_use]
