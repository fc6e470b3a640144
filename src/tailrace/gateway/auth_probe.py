"""Whether the upstream wants its clients to authenticate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tailrace.errors import ServerUnreachable

if TYPE_CHECKING:
    from tailrace.gateway.upstream import UpstreamConnection

_SECONDS_BETWEEN_QUESTIONS: Final = 1.0
_QUESTION: Final = {"getParameter": 1, "quiet": 1, "$db": "admin"}
"""Cheap, and answered only to those who have authenticated, where that is wanted."""


class AuthProbe:
    """Asks on a connection that never authenticates. An answer holds as long as that connection does.

    Whatever is no plain yes means that authentication is wanted. A server that is started again, now with
    authentication, breaks the connection; where another becomes primary, the next question goes to that one.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[UpstreamConnection]], primary: Callable[[], Awaitable[tuple[str, int]]]
    ) -> None:
        self._connect = connect
        self._primary = primary
        self._connection: UpstreamConnection | None = None
        self._is_required = True
        self._lock = asyncio.Lock()

    @property
    def known(self) -> bool | None:
        """What the upstream said; None when it has to be asked first."""
        if self._connection is None or self._connection.is_lost:
            return None
        return self._is_required

    async def ask(self) -> bool:
        """Ask now, unless somebody just did."""
        async with self._lock:
            if self.known is None:
                await self._question()
        return self._is_required

    async def follow(self) -> None:
        """Ask again and again, for as long as the gateway runs."""
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_QUESTIONS)
            try:
                async with self._lock:
                    await self._question()
            except (ServerUnreachable, TimeoutError):
                continue  # nothing is known until it answers

    async def _question(self) -> None:
        connection = self._connection
        if connection is not None and (connection.is_lost or connection.address != await self._primary()):
            self.close()
            connection = None
        if connection is None:
            connection = await self._connect()
        try:
            reply = await connection.command(dict(_QUESTION))
        except BaseException:
            connection.close()
            self._connection = None
            raise
        self._is_required = reply.get("ok") != 1
        self._connection = connection

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
