"""Threads that users share: whoever waits gets one in turn, and nobody has more than half of them.

However many streams one user opens, and however much each of them costs, the next thread that is free works for
somebody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias, TypeVar

T = TypeVar("T")
_Turn: TypeAlias = "asyncio.Future[None]"


class FairWorkers:
    """A pool of threads; `run` is called on the event loop alone."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free = count
        self._most = max(1, count // 2)
        """How many of them one owner may have."""
        self._busy: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_Turn]] = OrderedDict()
        """By owner; who comes first has waited longest since its last turn."""

    async def run(self, owner: str, work: Callable[..., T], *arguments: object) -> T:
        """Run work for an owner when it is its turn; once it has begun it goes on, whether or not it is waited for."""
        loop = asyncio.get_running_loop()
        await self._wait_for_a_turn(owner, loop)
        try:
            running = self._threads.submit(work, *arguments)
        except BaseException:
            self._end(owner)
            raise
        running.add_done_callback(lambda _: self._end_soon(owner, loop))
        return await asyncio.wrap_future(running)

    def submit(self, work: Callable[[], object]) -> Future[object]:
        """Run something short as soon as a thread is free, before all who wait for a turn."""
        return self._threads.submit(work)

    def close(self, *, cancel: bool) -> None:
        """Take no more work."""
        self._threads.shutdown(wait=False, cancel_futures=cancel)
        if cancel:
            for turn in [turn for turns in self._waiting.values() for turn in turns]:
                turn.cancel()

    async def _wait_for_a_turn(self, owner: str, loop: asyncio.AbstractEventLoop) -> None:
        turn = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(owner)
            raise

    def _end_soon(self, owner: str, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._end, owner)
        except RuntimeError:
            return  # the loop has ended, and with it everybody who waited

    def _end(self, owner: str) -> None:
        self._free += 1
        self._busy[owner] -= 1
        if not self._busy[owner]:
            del self._busy[owner]
        self._grant()

    def _grant(self) -> None:
        """Give free threads to those whose turn it is."""
        while self._free and (owner := self._next_owner()) is not None:
            turn = self._waiting[owner].popleft()
            if self._waiting[owner]:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            if not turn.done():
                self._free -= 1
                self._busy[owner] += 1
                turn.set_result(None)

    def _next_owner(self) -> str | None:
        return next((owner for owner in self._waiting if self._busy[owner] < self._most), None)
