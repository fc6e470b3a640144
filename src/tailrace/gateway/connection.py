"""One client's socket: bytes come in and leave as whole messages, without a coroutine or a timer for each part.

An idle client costs no timer: one task of the gateway looks at all of them now and then, for those that began a
message, or never said a word, too long ago.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, cast

from tailrace.errors import BadFrame
from tailrace.gateway.wire import HEADER_SIZE, Message, parse, read_header

T = TypeVar("T")

_MESSAGES_AHEAD: Final = 4
"""A client that sends more before it has its answers has to wait."""


class Connection(asyncio.Protocol):
    """Whole messages in, bytes out."""

    def __init__(self, accept: Callable[[Connection], None]) -> None:
        self._accept = accept
        self._transport: asyncio.Transport
        self._incoming = bytearray()
        self._messages: deque[Message] = deque()
        self._since: float | None = time.monotonic()
        """Since when a message is expected to be complete; None while the client may be idle."""
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._error: BadFrame | None = None
        self._is_lost = False
        self._interrupt: Callable[[], object] | None = None

    # --- for the conversation

    @property
    def peer(self) -> object:
        """The client's address."""
        return self._transport.get_extra_info("peername")

    @property
    def local_address(self) -> object:
        """The gateway's address, as the client reached it."""
        return self._transport.get_extra_info("sockname")

    async def read(self) -> Message | None:
        """Give the next message; None when the client has gone."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._is_lost:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        if len(self._messages) < _MESSAGES_AHEAD:
            self._transport.resume_reading()
        return message

    async def write(self, parts: Sequence[bytes]) -> None:
        """Send a frame, and wait while the client does not take what was sent before."""
        if self._is_lost:
            raise ConnectionResetError
        self._transport.writelines(parts)
        if self._drained is not None:
            await self._drained

    async def while_there(self, work: Awaitable[T]) -> T:
        """Do something that nobody needs any more, and that is given up, when the client goes."""
        task = asyncio.current_task()
        self._interrupt = None if task is None else task.cancel
        try:
            return await work
        finally:
            self._interrupt = None

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    # --- for whoever looks at all of them

    def drop_if_late(self, now: float, seconds: float) -> None:
        """Give up on a message that has been on its way for so long."""
        if self._since is not None and now - self._since > seconds:
            self._fail(BadFrame(f"a message that did not arrive within {seconds:g} s"))

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._accept(self)

    def data_received(self, data: bytes) -> None:
        """Take whole messages out of what has come."""
        if self._error is not None:
            return
        incoming = self._incoming
        if not incoming and self._take_one(data):
            return
        incoming += data
        try:
            while self._take(incoming):
                continue
        except BadFrame as error:
            self._fail(error)
            return
        self._since = (self._since or time.monotonic()) if incoming else None
        self._wake()

    def _take_one(self, data: bytes) -> bool:
        """Take what nearly always comes: one message, all of it."""
        if len(data) < HEADER_SIZE or int.from_bytes(data[:4], "little", signed=True) != len(data):
            return False
        try:
            self._messages.append(_message(data))
        except BadFrame as error:
            self._fail(error)
            return True
        self._since = None
        self._wake()
        return True

    def _take(self, incoming: bytearray) -> bool:
        if len(incoming) < HEADER_SIZE:
            return False
        length = read_header(bytes(incoming[:HEADER_SIZE]))[0]
        if len(incoming) < length:
            return False
        self._messages.append(_message(bytes(incoming[:length])))
        del incoming[:length]
        if len(self._messages) >= _MESSAGES_AHEAD:
            self._transport.pause_reading()
        return True

    def eof_received(self) -> bool:
        """Hang up when the client does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Let whoever reads or writes know."""
        self._is_lost = True
        self._incoming.clear()
        self.resume_writing()
        self._wake()
        if self._interrupt is not None:
            self._interrupt()

    def pause_writing(self) -> None:
        """Wait with the next answers."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Go on."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def _fail(self, error: BadFrame) -> None:
        self._error = error
        self._since = None
        self._incoming.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _message(frame: bytes) -> Message:
    _, request_id, response_to, opcode = read_header(frame)
    return parse(frame[HEADER_SIZE:], opcode, request_id, response_to)
