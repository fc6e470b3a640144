"""How large messages pass through: piece by piece, so that they are neither copied as a whole nor held as one.

Copying 48 MB takes as long as serving a thousand getMores, and everybody else waits. So a large request stays where it
was received, and leaves in pieces. Of a large reply the gateway has never more than some pieces: it reads on upstream
when the client has taken what came before. Only a reply that is to be compressed has to be here whole, for its
compressed size stands at its beginning; all of those together have a budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.gateway.wire import Message, Parts

if TYPE_CHECKING:
    from tailrace.gateway.connection import Connection

PIECE: Final = 128 * 1024
"""What is copied, or held, at a time; smaller messages are whole ones."""


def pieces_of(parts: Parts) -> Iterator[memoryview]:
    """Cut the parts of a message into pieces, without copying them."""
    for part in parts:
        view = memoryview(part)
        for begin in range(0, len(view), PIECE):
            yield view[begin : begin + PIECE]


@dataclass(frozen=True, slots=True)
class ReplyOutlet:
    """Where the answer to one message of a client goes, when the upstream gives it."""

    connection: Connection
    message: Message

    @property
    def takes_pieces(self) -> bool:
        """Whether a large answer may leave before all of it has come: it is not, where it has to be compressed."""
        return self.message.compressor is None

    async def begin(self, size: int) -> None:
        """Begin an answer whose body has so many bytes."""
        await self.connection.send((self.message.reply_head(size),))

    async def send(self, piece: bytes) -> None:
        """Send on, and wait while the client does not take what came before."""
        await self.connection.send((piece,))

    async def wait_for_capacity(self, size: int) -> None:
        """Wait until there is room for a whole answer."""
        await self.connection.wait_for_capacity(size)
