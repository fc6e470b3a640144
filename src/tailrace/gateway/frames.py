"""What clients may have on its way: budgets of bytes for all of them together, and threads for what is compressed.

A frame of a few kilobytes can unpack to 48 MB. So what it says it will become is looked at first, counts against a
budget, and is unpacked away from the event loop, as large replies are packed. Small ones are cheaper in place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tailrace.errors import BadFrame
from tailrace.gateway.wire import Message, Parts, message_in, unpacked_size

_IN_PLACE: Final = 16 * 1024
"""Up to this size, (un)packing costs less than a thread: some 50 us."""
_WORKERS: Final = 2


class ByteBudget:
    """How many bytes there may be at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, count: int) -> bool:
        """Count bytes that are there already; false when they are too many."""
        self.used += count
        return self.used <= self.limit

    async def reserve(self, count: int) -> None:
        """Wait until there is room for so many bytes; first come, first served."""
        if not self._waiting and self._fits(count):
            self.used += count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = count, turn
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count)
            elif entry in self._waiting:
                self._waiting.remove(entry)
            raise

    def give(self, count: int) -> None:
        """Let others have bytes that are gone."""
        self.used -= count
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)

    def _fits(self, count: int) -> bool:
        return self.used == 0 or self.used + count <= self.limit


class Frames:
    """The budgets of one gateway's clients, and the threads that pack and unpack for them."""

    def __init__(self, budget: int, on_full: Callable[[], None]) -> None:
        self.received = ByteBudget(budget)
        """What has come and was not answered yet, half messages too."""
        self.unpacked = ByteBudget(budget)
        self.replies = ByteBudget(budget)
        """Large answers of the upstream that have to be compressed; all others pass in pieces."""
        self._on_full = on_full
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="gateway-frames")

    def count(self, change: int) -> None:
        """Count bytes that have come or gone."""
        if change < 0:
            self.received.give(-change)
        elif change and not self.received.take(change):
            self._on_full()

    @staticmethod
    async def wait_for_capacity(budget: ByteBudget, size: int, seconds: float) -> None:
        """Wait until a budget has room; who waits too long is dropped, for others hold too much."""
        try:
            async with asyncio.timeout(seconds):
                await budget.reserve(size)
        except TimeoutError:
            raise BadFrame(f"a message of {size} bytes that there was no room for") from None

    async def open(self, frame: bytes, largest: int, seconds: float) -> tuple[Message, int]:
        """Read a frame: the message, and what it takes of the budget of unpacked bytes until it is answered."""
        size = unpacked_size(frame)
        if size > largest:
            raise BadFrame(f"a compressed message of {size} bytes, more than {largest}")
        if size == 0 or (size <= _IN_PLACE and len(frame) <= _IN_PLACE):
            return message_in(frame), 0
        await self.wait_for_capacity(self.unpacked, size, seconds)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, message_in, frame), size
        except BaseException:
            self.unpacked.give(size)
            raise

    async def pack(self, message: Message, body: Sequence[bytes]) -> Parts:
        """Make the frame of a reply that is compressed."""
        if sum(map(len, body)) <= _IN_PLACE:
            return message.reply_parts(body)
        return await asyncio.get_running_loop().run_in_executor(self._workers, message.reply_parts, body)

    def close(self) -> None:
        """Let the threads end."""
        self._workers.shutdown(wait=False, cancel_futures=True)
