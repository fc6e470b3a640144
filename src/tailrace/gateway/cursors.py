"""The cursors of all clients, by id: a driver may go on with one on another connection."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace import raw
from tailrace.gateway.limits import Shares
from tailrace.gateway.streams import AnySubscription
from tailrace.logs import get_logger

if TYPE_CHECKING:
    from tailrace.engine.options import StreamSpec
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
    opened_by: Mapping[str, Any] = field(repr=False)
    """The command, to ask the upstream again whether it is allowed."""
    privileges: bytes = field(repr=False)
    """What the upstream said of the users' privileges just before it allowed the command."""
    address: str
    """Where the client was that opened it."""
    api: str = "{}"
    """The API version that it was opened with."""
    events: int = 0
    """How many were sent."""
    opened_at: float = field(default_factory=time.monotonic)
    used_at: float = field(default_factory=time.monotonic)
    in_use: bool = False
    spec: StreamSpec | None = None
    """What was asked for."""
    collection: bytes = field(init=False, repr=False)
    """The collection that each getMore has to name, as a BSON value."""

    def __post_init__(self) -> None:
        self.collection = raw.string(self.namespace.partition(".")[2])


class Cursors:
    """All open cursors; those that nobody asks for any more time out."""

    def __init__(self, shares: Shares, *, access_log: bool = True) -> None:
        self._shares = shares
        self._log = get_logger() if access_log else None
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
        opened_by: Mapping[str, Any],
        privileges: bytes,
        address: str,
        api: str = "{}",
        spec: StreamSpec | None = None,
    ) -> Cursor:
        """Give a subscription an id that no upstream cursor has: 62 bits by chance."""
        self._shares.take(_holders(owner, address))
        cursor = Cursor(
            secrets.randbits(62) | 1, subscription, namespace, session, owner, opened_by, privileges, address, api,
            spec=spec,
        )  # fmt: skip
        self._by_id[cursor.id] = cursor
        self._log_access("stream_opened", cursor)
        return cursor

    def check_capacity(self, owner: frozenset[str], address: str) -> None:
        """Refuse a stream beyond those that its owner may have."""
        self._shares.check(_holders(owner, address))

    def get(self, cursor_id: int) -> Cursor | None:
        """Find a cursor."""
        return self._by_id.get(cursor_id)

    def remove(self, cursor: Cursor) -> None:
        """Forget a cursor; closing its subscription is left to the caller."""
        if self._by_id.pop(cursor.id, None) is None:
            return
        self._shares.give(_holders(cursor.owner, cursor.address))
        lasted = round(time.monotonic() - cursor.opened_at, 3)
        self._log_access("stream_closed", cursor, seconds=lasted, events=cursor.events)

    def idle_for(self, seconds: float) -> list[Cursor]:
        """Give those that nobody has asked for so long."""
        before = time.monotonic() - seconds
        return [cursor for cursor in self if cursor.used_at < before and not cursor.in_use]

    def log_left_to_upstream(self, owner: frozenset[str], address: str, namespace: str) -> None:
        """Write down a stream that the upstream serves; when it ends, and after how many events, only that knows."""
        if self._log is not None:
            user = ", ".join(sorted(owner))
            self._log.info("stream_left_to_upstream", user=user, address=address, namespace=namespace)

    def _log_access(self, event: str, cursor: Cursor, **facts: Any) -> None:
        """Write down who watches what, and from where."""
        if self._log is not None:
            user = ", ".join(sorted(cursor.owner))
            self._log.info(
                event, user=user, address=cursor.address, namespace=cursor.namespace, cursor=cursor.id, **facts
            )


def _holders(owner: frozenset[str], address: str) -> tuple[str, ...]:
    """Give among whose streams one is counted: where nobody authenticates, among those of an address."""
    return tuple(owner) or (address,)
