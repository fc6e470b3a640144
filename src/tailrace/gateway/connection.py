"""One client's socket: bytes come in and leave as whole messages, without a coroutine or a timer for each part.

An idle client costs no timer: one task of the gateway checks all of them now and then, for those that began a
message, or never said a word, too long ago.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from tailrace.errors import BadFrame
from tailrace.gateway.fairness import ClientShare, Fairness
from tailrace.gateway.frames import ByteBudget, Frames
from tailrace.gateway.relay import PIECE, pieces_of
from tailrace.gateway.wire import HEADER_SIZE, Message, Parts, read_header, size_of

T = TypeVar("T")

_MESSAGES_AHEAD: Final = 4
_BYTES_AHEAD: Final = 1024 * 1024
"""A client that sends more before it has its answers has to wait."""


class _Reserved(NamedTuple):
    """Bytes of a budget that a client has."""

    budget: ByteBudget
    size: int
    owner: str
    since: float


class Connection(asyncio.Protocol):
    """Whole messages in, bytes out."""

    share: ClientShare
    """What the client has of the event loop, from when it has connected."""

    def __init__(
        self,
        accept: Callable[[Connection], None],
        frames: Frames,
        fairness: Fairness,
        *,
        largest: int,
        seconds: float,
        is_stranger: bool,
        tls: ssl.SSLContext | None,
    ) -> None:
        """Take messages of up to `largest` bytes, each within so many seconds, as a TLS handshake has."""
        self.largest = largest
        self._fairness = fairness
        self._is_stranger = is_stranger
        self._seconds = seconds
        self._frames = frames
        self._accept = accept
        self._tls = tls
        self._transport: asyncio.Transport
        self._incoming = bytearray()
        self._whole: deque[bytes] = deque()
        """Frames that nobody has read yet. Large ones are bytearrays, as they were received, and read like bytes."""
        self.buffered = 0
        """How many bytes those have, what has come of the next one, and the one that is not answered yet."""
        self._in_work = 0
        """How many bytes the message has that was read last and is not answered yet."""
        self._reserved: list[_Reserved] = []
        """What it and its answer take of the budgets of unpacked bytes and of replies."""
        self.owner = ""
        """Who has authenticated, and so shares those budgets with others; until then it is the address."""
        self._is_paused = False
        self._asked_at = 0.0
        """Since when the next message is waited for."""
        self._since: float | None = time.monotonic()
        """Since when a message is expected to be complete; None while the client may be idle."""
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._unsent = 0
        self._unsent_since = 0.0
        """Since when the client has taken nothing of what it should read."""
        self._error: BadFrame | None = None
        self._is_lost = False
        self._hanging_up: asyncio.TimerHandle | None = None
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

    async def encrypt(self) -> None:
        """Shake hands, where that is asked for; the client counts already, for this costs more than a message."""
        if self._tls is None:
            return
        seconds = self._seconds
        begun = asyncio.get_running_loop().start_tls(
            self._transport,
            self,
            self._tls,
            server_side=True,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=seconds,
        )
        try:
            encrypted = await self.while_there(begun)
        except BaseException as error:
            self._transport.abort()
            self._is_lost = True
            if isinstance(error, ssl.SSLError | ConnectionAbortedError):  # the second is a timeout
                raise BadFrame(f"no TLS: {error}") from None
            raise
        if encrypted is None:
            raise ConnectionResetError
        self._transport = encrypted
        self._since = time.monotonic()

    async def read(self) -> Message | None:
        """Give the next message when it is this client's turn; None when the client has gone."""
        self._forget_message()
        if self._whole:
            await asyncio.sleep(0)  # however much a client sends at once, others come in between
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
        turn = self.share.turn()
        if turn is not None:
            await self.while_there(turn)
            if not self._whole:  # the client was dropped meanwhile
                return await self.read()
        frame = self._whole.popleft()
        self._in_work = len(frame)
        self._take_whole()
        if self._is_paused and not self._is_ahead:
            self._resume()
        owner = self.owner or self.address
        message, unpacked = await self._frames.open(frame, self.largest, self._seconds, owner)
        if unpacked:
            self._reserved.append(_Reserved(self._frames.unpacked, unpacked, owner, time.monotonic()))
        return message

    def _forget_message(self) -> None:
        self.share.end_turn()
        if self._in_work:
            self._count_buffered(-self._in_work)
            self._in_work = 0
        reserved, self._reserved = self._reserved, []
        for each in reserved:
            each.budget.give(each.size, each.owner)

    async def wait_for_capacity(self, size: int) -> None:
        """Wait until there is room for a whole answer, which then is this client's until it is sent."""
        owner, budget = self.owner or self.address, self._frames.replies
        await self._frames.wait_for_capacity(budget, size, self._seconds, owner)
        self._reserved.append(_Reserved(budget, size, owner, time.monotonic()))

    def holds_since(self, budget: ByteBudget) -> float | None:
        """Return since when the client has had bytes of a budget; None when it has none."""
        return min((each.since for each in self._reserved if each.budget is budget), default=None)

    async def write(self, message: Message, body: Sequence[bytes]) -> None:
        """Answer a message, and wait while the client does not take what was sent before."""
        if message.compressor is None:
            parts = message.reply_parts(body)
        else:
            if size_of(body) > PIECE and self.holds_since(self._frames.replies) is None:
                await self.while_there(self.wait_for_capacity(size_of(body)))
            parts = await self._frames.pack(message, body)
        if size_of(parts) <= PIECE:
            await self.send(parts)
            return
        for piece in pieces_of(parts):
            await self.send((piece,))
            await asyncio.sleep(0)  # others come in between

    async def send(self, parts: Parts) -> None:
        """Send parts of an answer, and wait while the client does not take what was sent before."""
        if self._is_lost:
            raise self._error or ConnectionResetError
        self._transport.writelines(parts)
        if self._drained is not None:
            await self._drained

    async def while_there(self, work: Awaitable[T]) -> T:
        """Await work that is cancelled when the client goes."""
        task = asyncio.current_task()
        self._interrupt = None if task is None else task.cancel
        try:
            return await work
        except asyncio.CancelledError:
            if self._error is None:
                raise
            raise self._error from None  # it was dropped
        finally:
            self._interrupt = None

    def close(self) -> None:
        """Hang up; a client has so many seconds to take the last answers."""
        self._forget_message()
        self._transport.close()
        if not self._is_lost:
            self._hanging_up = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)

    # --- for the task that checks all of them

    def drop_if_late(self, now: float) -> None:
        """Give up on a message that has been on its way for too long."""
        if self._since is not None and now - self._since > self._seconds:
            self.drop(f"a message that did not arrive within {self._seconds:g} s")
        if self._drained is not None:
            self._drop_if_it_does_not_read(now)
        if self._is_paused and _has_hung_up(self._transport.get_extra_info("socket")):
            self._transport.abort()  # nobody reads, so nobody would see that it has gone

    def _drop_if_it_does_not_read(self, now: float) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since > self._seconds:
            self.hang_up(f"{unsent} bytes of replies not read by the client for {self._seconds:g} s")

    def drop_if_idle(self, now: float, seconds: float) -> None:
        """Give up on a client that has its answers and has asked for nothing since."""
        if self._waiter is not None and not self.buffered and now - self._asked_at > seconds:
            self.drop(f"no message for {seconds:g} s")

    @property
    def is_dropped(self) -> bool:
        """Whether the client is about to be hung up on."""
        return self._error is not None

    def drop(self, reason: str) -> None:
        """Give up on what has come, and so on the client; what it asked the upstream for is not waited for."""
        self._whole.clear()
        self._fail(BadFrame(reason))
        if self._interrupt is not None:
            self._interrupt()

    def hang_up(self, reason: str) -> None:
        """Give up on the client at once, also where it is waited for until it reads."""
        self._error = self._error or BadFrame(reason)
        self._transport.abort()

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        if self._tls is not None:
            self._transport.pause_reading()  # all that comes is the handshake's
        self.share = ClientShare(self._fairness, self.address, is_stranger=self._is_stranger)
        self._accept(self)

    def data_received(self, data: bytes) -> None:
        """Take whole frames out of what has come."""
        if self._error is not None:
            return
        self._incoming += data
        self._count_buffered(len(data))
        self._take_whole()
        if self._error is not None:
            return
        if self._is_ahead and not self._is_paused:
            self._pause()
        else:
            self._since = (self._since or time.monotonic()) if self._incoming else None
        self._wake()

    def _take_whole(self) -> None:
        """Take frames out of what has come, not many at once; the rest when those were read."""
        try:
            while self._error is None and not self._is_ahead and self._take():
                continue
        except BadFrame as error:
            self._fail(error)

    def _take(self) -> bool:
        incoming = self._incoming
        if len(incoming) < HEADER_SIZE:
            return False
        length = read_header(incoming, self.largest).length
        if len(incoming) < length:
            return False
        if length > PIECE:
            self._incoming = incoming[length:]
            del incoming[length:]
            self._whole.append(cast(bytes, incoming))
        elif len(incoming) == length:
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
        return len(self._whole) >= _MESSAGES_AHEAD or (bool(self._whole) and self.buffered > _BYTES_AHEAD)

    def _pause(self) -> None:
        self._is_paused = True
        self._since = None  # what does not come now is not the client's fault
        self._transport.pause_reading()

    def _resume(self) -> None:
        self._is_paused = False
        self._since = time.monotonic() if self._incoming else None
        self._transport.resume_reading()

    def _count_buffered(self, change: int) -> None:
        self.buffered += change
        self._frames.count(change)

    def eof_received(self) -> bool:
        """Hang up when the client does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Let whoever reads or writes know."""
        self._is_lost = True
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        self._incoming.clear()
        self._whole.clear()
        self._count_buffered(self._in_work - self.buffered)
        self.resume_writing()
        self._wake()
        if self._interrupt is not None:
            self._interrupt()

    def pause_writing(self) -> None:
        """Wait with the next answers."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self._unsent = 0

    def resume_writing(self) -> None:
        """Go on."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def _fail(self, error: BadFrame) -> None:
        self._error = error
        self._since = None
        self._incoming.clear()
        self._count_buffered(sum(map(len, self._whole)) + self._in_work - self.buffered)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _has_hung_up(peer: socket.socket) -> bool:
    """Return whether the other side has closed a socket from which nobody reads; only Linux says so."""
    if not hasattr(select, "POLLRDHUP") or peer.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
