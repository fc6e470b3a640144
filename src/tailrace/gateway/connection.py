"""One client's socket: bytes come in and leave as whole messages, without a coroutine or a timer for each part.

An idle client costs no timer: one task of the gateway looks at all of them now and then, for those that began a
message, or never said a word, too long ago.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar, cast

from tailrace.errors import BadFrame
from tailrace.gateway.frames import Frames
from tailrace.gateway.wire import HEADER_SIZE, Message, read_header

T = TypeVar("T")

_MESSAGES_AHEAD: Final = 4
_BYTES_AHEAD: Final = 1024 * 1024
"""A client that sends more before it has its answers has to wait."""


class Connection(asyncio.Protocol):
    """Whole messages in, bytes out."""

    def __init__(self, accept: Callable[[Connection], None], frames: Frames, *, largest: int, seconds: float) -> None:
        """Take messages of up to `largest` bytes, each within so many seconds."""
        self.largest = largest
        self._seconds = seconds
        self._frames = frames
        self._accept = accept
        self._transport: asyncio.Transport
        self._incoming = bytearray()
        self._whole: deque[bytes] = deque()
        """Frames that nobody has read yet."""
        self.held = 0
        """How many bytes those and what has come of the next one have."""
        self._unpacked = 0
        """What the message that was read last takes of the budget."""
        self._is_paused = False
        self._asked_at = 0.0
        """Since when the next message is waited for."""
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
    def address(self) -> str:
        """The client's address, without its port."""
        peer = self.peer
        return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else ""

    @property
    def local_address(self) -> object:
        """The gateway's address, as the client reached it."""
        return self._transport.get_extra_info("sockname")

    async def read(self) -> Message | None:
        """Give the next message; None when the client has gone."""
        self._forget_message()
        self._asked_at = time.monotonic()
        while not self._whole:
            if self._error is not None:
                raise self._error
            if self._is_lost:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        frame = self._whole.popleft()
        self._hold(-len(frame))
        if self._is_paused and not self._is_ahead:
            self._resume()
        message, self._unpacked = await self._frames.open(frame, self.largest, self._seconds)
        return message

    def _forget_message(self) -> None:
        if self._unpacked:
            self._frames.unpacked.give(self._unpacked)
            self._unpacked = 0

    async def write(self, message: Message, body: Sequence[bytes]) -> None:
        """Answer a message, and wait while the client does not take what was sent before."""
        parts = await self._frames.pack(message, body)
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
        self._forget_message()
        self._transport.close()

    # --- for whoever looks at all of them

    def drop_if_late(self, now: float) -> None:
        """Give up on a message that has been on its way for too long."""
        if self._since is not None and now - self._since > self._seconds:
            self.drop(f"a message that did not arrive within {self._seconds:g} s")
        if self._is_paused and _has_hung_up(self._transport.get_extra_info("socket")):
            self._transport.abort()  # nobody reads, so nobody would see that it has gone

    def drop_if_idle(self, now: float, seconds: float) -> None:
        """Give up on a client that has its answers and has asked for nothing since."""
        if self._waiter is not None and not self.held and now - self._asked_at > seconds:
            self.drop(f"no message for {seconds:g} s")

    def drop(self, reason: str) -> None:
        """Give up on what has come of the next messages, and so on the client."""
        self._whole.clear()
        self._fail(BadFrame(reason))

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._accept(self)

    def data_received(self, data: bytes) -> None:
        """Take whole frames out of what has come."""
        if self._error is not None:
            return
        self._incoming += data
        self._hold(len(data))
        try:
            while self._error is None and self._take():
                continue
        except BadFrame as error:
            self._fail(error)
            return
        if self._is_ahead and not self._is_paused and self._error is None:
            self._pause()
        else:
            self._since = (self._since or time.monotonic()) if self._incoming else None
        self._wake()

    def _take(self) -> bool:
        incoming = self._incoming
        if len(incoming) < HEADER_SIZE:
            return False
        length = read_header(bytes(incoming[:HEADER_SIZE]), self.largest)[0]
        if len(incoming) < length:
            return False
        if len(incoming) == length:
            self._whole.append(bytes(incoming))
            incoming.clear()
        else:
            with memoryview(incoming) as view:
                self._whole.append(bytes(view[:length]))
            del incoming[:length]
        return True

    @property
    def _is_ahead(self) -> bool:
        """Whether the client has sent so much that it should wait for its answers first."""
        return len(self._whole) >= _MESSAGES_AHEAD or (bool(self._whole) and self.held > _BYTES_AHEAD)

    def _pause(self) -> None:
        self._is_paused = True
        self._since = None  # what does not come now is not the client's fault
        self._transport.pause_reading()

    def _resume(self) -> None:
        self._is_paused = False
        self._since = time.monotonic() if self._incoming else None
        self._transport.resume_reading()

    def _hold(self, change: int) -> None:
        self.held += change
        self._frames.count(change)

    def eof_received(self) -> bool:
        """Hang up when the client does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Let whoever reads or writes know."""
        self._is_lost = True
        self._incoming.clear()
        self._whole.clear()
        self._hold(-self.held)
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
        self._hold(sum(map(len, self._whole)) - self.held)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _has_hung_up(peer: socket.socket) -> bool:
    """Tell whether the other side has closed a socket from which nobody reads; only Linux says so."""
    if not hasattr(select, "POLLRDHUP") or peer.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
