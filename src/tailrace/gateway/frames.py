"""What clients may have on its way: budgets of bytes for all of them together, and threads for what is compressed.

A frame of a few kilobytes can unpack to 48 MB. So its declared size is checked first, counts against a
budget, and is unpacked away from the event loop, as large replies are packed. Small ones are cheaper in place.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tailrace.errors import BadFrame
from tailrace.gateway.wire import Message, Parts, message_in, unpacked_size

_IN_PLACE: Final = 16 * 1024
"""Up to this size, (un)packing costs less than a thread: some 50 us."""
_WORKERS: Final = 2
_SECONDS_BETWEEN_CALLS: Final = 1.0


class ByteBudget:
    """How many bytes there may be at once.

    Those who wait get theirs by owner in turn, and nobody more than half while others wait. As long as somebody waits,
    `on_waiting` is called every second: whoever has held bytes for long may have to go.
    """

    def __init__(self, limit: int, on_waiting: Callable[[ByteBudget], None] | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._on_waiting = on_waiting
        self._reserved: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        self._is_pressing = False

    def take(self, count: int) -> bool:
        """Count bytes that are there already; false when they are too many."""
        self.used += count
        return self.used <= self.limit

    async def reserve(self, count: int, owner: str = "") -> None:
        """Wait until there is room for so many bytes."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append((count, turn))
        self._grant()
        if not turn.done():
            self._press_later()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count, owner)
            else:
                self._grant()
            raise

    def give(self, count: int, owner: str = "") -> None:
        """Let others have bytes that are gone."""
        self.used -= count
        self._reserved[owner] -= count
        if self._reserved[owner] <= 0:
            del self._reserved[owner]
        self._grant()

    def _grant(self) -> None:
        while (owner := self._next_owner()) is not None:
            count, turn = self._waiting[owner].popleft()
            self._waiting.move_to_end(owner)
            self.used += count
            self._reserved[owner] += count
            turn.set_result(None)

    def _next_owner(self) -> str | None:
        """Give whose turn it is, if there is room for what it wants; who comes later may want less, and waits too."""
        for owner, turns in tuple(self._waiting.items()):
            while turns and turns[0][1].done():
                turns.popleft()
            if not turns:
                del self._waiting[owner]
        for owner, turns in self._waiting.items():
            count = turns[0][0]
            has_enough = self._reserved[owner] and self._reserved[owner] + count > self.limit // 2
            if has_enough and len(self._waiting) > 1:
                continue
            return owner if self.used == 0 or self.used + count <= self.limit else None
        return None

    def _press_later(self) -> None:
        if not self._is_pressing and self._on_waiting is not None:
            self._is_pressing = True
            asyncio.get_running_loop().call_later(_SECONDS_BETWEEN_CALLS, self._press)

    def _press(self) -> None:
        self._is_pressing = False
        if self._waiting and self._on_waiting is not None:
            self._on_waiting(self)
            self._press_later()


class Frames:
    """The budgets of one gateway's clients, and the threads that pack and unpack for them."""

    def __init__(
        self, budget: int, on_full: Callable[[], None], on_waiting: Callable[[ByteBudget], None] | None = None
    ) -> None:
        """`on_full` is called when too much has come, `on_waiting` while somebody waits for bytes of another budget."""
        self.received = ByteBudget(budget)
        """What has come and was not answered yet, half messages too."""
        self.unpacked = ByteBudget(budget, on_waiting)
        self.replies = ByteBudget(budget, on_waiting)
        """Large answers that have to be compressed; all others pass in pieces."""
        self._on_full = on_full
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="gateway-frames")

    def count(self, change: int) -> None:
        """Count bytes that have come or gone."""
        if change < 0:
            self.received.give(-change)
        elif change and not self.received.take(change):
            self._on_full()

    @staticmethod
    async def wait_for_capacity(budget: ByteBudget, size: int, seconds: float, owner: str) -> None:
        """Wait until a budget has room; who waits too long is dropped, for others hold too much."""
        try:
            async with asyncio.timeout(seconds):
                await budget.reserve(size, owner)
        except TimeoutError:
            raise BadFrame(f"a message of {size} bytes that there was no room for") from None

    async def open(self, frame: bytes, largest: int, seconds: float, owner: str = "") -> tuple[Message, int]:
        """Read a frame: the message, and what it takes of the budget of unpacked bytes until it is answered."""
        size = unpacked_size(frame)
        if size > largest:
            raise BadFrame(f"a compressed message of {size} bytes, more than {largest}")
        if size == 0 or (size <= _IN_PLACE and len(frame) <= _IN_PLACE):
            return message_in(frame), 0
        await self.wait_for_capacity(self.unpacked, size, seconds, owner)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, message_in, frame), size
        except BaseException:
            self.unpacked.give(size, owner)
            raise

    async def pack(self, message: Message, body: Sequence[bytes]) -> Parts:
        """Make the frame of a reply that is compressed."""
        if sum(map(len, body)) <= _IN_PLACE:
            return message.reply_parts(body)
        return await asyncio.get_running_loop().run_in_executor(self._workers, message.reply_parts, body)

    def close(self) -> None:
        """Let the threads end."""
        self._workers.shutdown(wait=False, cancel_futures=True)
