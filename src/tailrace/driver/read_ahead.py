"""Fetch the next batch while the user works on the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any

from pymongo.errors import AutoReconnect

from tailrace.driver.commands import Reply


class ReadAhead:
    """One command under way in a thread of its own; its reply, or its error, waits to be asked for.

    `ended` is called when the command is over, whether anybody still wants the reply or not.
    """

    def __init__(self, run: Callable[[], Reply], ended: Callable[[], None]) -> None:
        self._run = run
        self._ended = ended
        self._reply: Reply | None = None
        self._error: BaseException | None = None
        self.running = True
        self._thread = Thread(target=self._work, name="tailrace-read-ahead", daemon=True)
        self._thread.start()

    def result(self) -> Reply:
        """Wait for the reply, or raise what the command raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return self._reply

    def _work(self) -> None:
        try:
            self._reply = self._run()
        except BaseException as error:
            self._error = error
        finally:
            self.running = False
            self._ended()


class AsyncReadAhead:
    """One command under way in a task of its own; its reply, or its error, waits to be asked for."""

    def __init__(self, run: Coroutine[Any, Any, Reply]) -> None:
        self._task = asyncio.create_task(run, name="tailrace-read-ahead")

    async def result(self) -> Reply:
        """Wait for the reply, or raise what the command raised. Whoever is cancelled here ends the command."""
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if self._task.cancelled():
            raise AutoReconnect("the stream was closed while its next batch was on the way")
        return self._task.result()

    async def cancel(self) -> None:
        """End the command, and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # seen, so that asyncio does not complain of it
