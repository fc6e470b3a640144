"""`AsyncChangeStream`: the resume logic with pymongo's asynchronous connections under it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from pymongo.errors import PyMongoError

from tailrace.client import AsyncRawCursor, open_async_cursor
from tailrace.client.commands import Aggregate, GetMore, Reply
from tailrace.driver.commands import Batch, Step
from tailrace.driver.fragments import splits_large_events
from tailrace.driver.options import WatchOptions
from tailrace.driver.resume import Steps, proceed
from tailrace.driver.shell import Shell
from tailrace.driver.target import AsyncTarget

D = TypeVar("D")


class AsyncChangeStream(Shell[D, AsyncRawCursor]):
    """A change stream for asyncio that resumes by itself. Made by `watch()`.

    It opens on `await`, on `async with`, or when it is first iterated::

        async with watch(collection) as stream:
            async for event in stream:
                ...

    `resume_token`, `try_next`, `batches` and errors are those of `ChangeStream`. `on_resume_token`, a function
    or coroutine function, is called with each new token, also with those that come without an event.
    A call that is cancelled loses nothing: the next one resumes where the stream was.
    """

    def __init__(self, target: AsyncTarget, pipeline: Sequence[Mapping[str, Any]], options: WatchOptions) -> None:
        super().__init__(target, pipeline, options)
        self._opened = False
        self._announced: Mapping[str, Any] | None = None

    def __await__(self) -> Generator[Any, None, AsyncChangeStream[D]]:
        return self._open().__await__()

    def __aiter__(self) -> AsyncIterator[D]:
        return self

    async def __anext__(self) -> D:
        taken = self._stream.take()
        event = await self._wait() if taken is None else self._decode(taken)
        await self._announce()
        return event

    async def next(self) -> D:
        """Wait for the next event. Raises StopAsyncIteration when the stream is closed or was invalidated."""
        return await self.__anext__()

    async def try_next(self) -> D | None:
        """Give the next event, or None when one getMore brought none. A resume may take its place."""
        event = self._stream.take()
        if event is None:
            await self._advance()
            event = self._stream.take()
        await self._announce()
        return None if event is None else self._decode(event)

    async def batches(self) -> AsyncIterator[Batch]:
        """Give all events as BSON, a reply at a time: the fastest way to read a stream.

        Every getMore gives a batch, also an empty one, so that its `resume_token` can be kept.
        """
        while self._stream.alive:
            await self._advance()
            batch = self._stream.take_batch()
            await self._announce()
            yield batch
        await self.close()

    async def close(self) -> None:
        """End the stream and its cursor on the server."""
        self._stream.close()
        if self._cursor is not None:
            await self._cursor.close()
        ended = self._end_session()
        if ended is not None:
            await ended

    async def __aenter__(self) -> AsyncChangeStream[D]:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> AsyncChangeStream[D]:
        if not self._opened and self._stream.alive:
            with self._time_limit():
                split = self._options.split_large_events and await self._server_splits()
                await self._perform(self._stream.open(split=split))
            self._opened = True
            await self._announce()
        return self

    async def _wait(self) -> D:
        await self._open()
        with self._time_limit():
            while self._stream.alive:
                document: D | None = self._stream.take_document()
                if document is not None:
                    return document
                event = self._stream.take()
                if event is not None:
                    return self._decode(event)
                await self._announce()
                self._expect_decoded()
                await self._perform(self._stream.advance())
        await self.close()
        raise StopAsyncIteration

    async def _advance(self) -> None:
        await self._open()
        await self._perform(self._stream.advance())

    async def _announce(self) -> None:
        """Call the user's callback with a token that is new."""
        callback = self._options.on_resume_token
        if callback is None:
            return
        token = self._stream.resume_token
        if token is not None and token != self._announced:
            self._announced = token
            answer = callback(token)
            if inspect.isawaitable(answer):
                await answer

    async def _perform(self, steps: Steps) -> None:
        """Carry out what the logic asks for, until it asks for nothing more."""
        self._working = True
        with self._time_limit():
            try:
                outcome: Reply | PyMongoError | None = None
                while (step := proceed(steps, outcome)) is not None:
                    try:
                        outcome = await self._execute(step)
                    except PyMongoError as error:
                        outcome = error
            except PyMongoError:
                raise
            except BaseException:
                self._interrupt()
                raise
            finally:
                self._working = False
                if not self._stream.alive:
                    await self.close()

    async def _execute(self, step: Step) -> Reply | None:
        """Run a command, or wait; behind a large batch the next one is asked for before this one is even cut."""
        if isinstance(step, GetMore):
            cursor = self._cursor
            assert cursor is not None
            reply = await cursor.get_more(step)
            if reply.has_more and self._may_read_ahead(cursor):
                await cursor.read_ahead(step)
            return reply
        if isinstance(step, Aggregate):
            self._log_reconnect()
            self._cursor, reply = await open_async_cursor(self._watched.handle, step, self._session)
            return reply
        await asyncio.sleep(step.seconds)
        return None

    async def _server_splits(self) -> bool:
        return splits_large_events((await self._watched.client.server_info())["versionArray"])
