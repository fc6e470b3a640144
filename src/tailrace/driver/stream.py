"""`ChangeStream`: the resume logic with pymongo's synchronous connections under it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pymongo.errors import PyMongoError

from tailrace.client import RawCursor, open_cursor
from tailrace.client.commands import Aggregate, GetMore, Reply
from tailrace.driver.commands import Batch, Step
from tailrace.driver.fragments import splits_large_events
from tailrace.driver.options import WatchOptions
from tailrace.driver.resume import Steps, proceed
from tailrace.driver.shell import Shell
from tailrace.driver.target import Target
from tailrace.owned.closeable import Closeable

D = TypeVar("D")


class ChangeStream(Shell[D, RawCursor], Closeable):
    """A change stream that resumes by itself. Made by `watch()`; it opens when it is made.

    To keep a position over restarts, store `resume_token` after each `try_next()`, also when that
    returned None: the token moves on while nothing happens, and so never grows too old::

        with watch(collection, resume_after=load()) as stream:
            while stream.alive:
                event = stream.try_next()
                if event is not None:
                    handle(event)
                save(stream.resume_token)

    Errors of the server that end the stream are pymongo's own (`OperationFailure`); an event without
    a token raises `ResumeTokenMissing`. After an error that a resume could have answered, but did not in
    the time it had, the stream stays alive: the next call tries again, and no event is skipped.

    Iterate from one thread; `close()` may be called from another, and ends an iteration that waits: when its
    getMore returns, because servers notice a killed cursor only then (after `max_await_time_ms`, or a second).
    """

    def __init__(self, target: Target, pipeline: Sequence[Mapping[str, Any]], options: WatchOptions) -> None:
        if options.on_resume_token is not None:
            raise TypeError("on_resume_token is for asynchronous streams; here, read resume_token")
        super().__init__(target, pipeline, options)
        with self._time_limit():
            split = options.split_large_events and self._server_splits()
            self._perform(self._stream.open(split=split))

    def __iter__(self) -> Iterator[D]:
        return self

    def __next__(self) -> D:
        event = self._stream.take()
        return self._wait() if event is None else self._decode(event)

    def next(self) -> D:
        """Wait for the next event. Raises StopIteration when the stream is closed or was invalidated."""
        return self.__next__()

    def try_next(self) -> D | None:
        """Give the next event, or None when one getMore brought none. A resume may take its place."""
        event = self._stream.take()
        if event is None:
            self._perform(self._stream.advance())
            event = self._stream.take()
        return None if event is None else self._decode(event)

    def batches(self) -> Iterator[Batch]:
        """Give all events as BSON, a reply at a time: the fastest way to read a stream.

        Every getMore gives a batch, also an empty one, so that its `resume_token` can be kept.
        """
        while self._stream.alive:
            self._perform(self._stream.advance())
            yield self._stream.take_batch()
        self.close()

    def close(self) -> None:
        """End the stream and its cursor on the server."""
        self._stream.close()
        if self._cursor is not None:
            self._cursor.close()
        self._end_session()

    def _wait(self) -> D:
        with self._time_limit():
            while self._stream.alive:
                self._expect_decoded()
                self._perform(self._stream.advance())
                document: D | None = self._stream.take_document()
                if document is not None:
                    return document
                event = self._stream.take()
                if event is not None:
                    return self._decode(event)
        self.close()
        raise StopIteration

    def _perform(self, steps: Steps) -> None:
        """Carry out what the logic asks for, until it asks for nothing more."""
        self._working = True
        with self._time_limit():
            try:
                outcome: Reply | PyMongoError | None = None
                while (step := proceed(steps, outcome)) is not None:
                    try:
                        outcome = self._execute(step)
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
                    self.close()

    def _execute(self, step: Step) -> Reply | None:
        """Run a command, or wait; behind a large batch the next one is asked for before this one is even cut."""
        if isinstance(step, GetMore):
            cursor = self._cursor
            assert cursor is not None
            reply = cursor.get_more(step)
            if reply.has_more and self._may_read_ahead(cursor):
                cursor.read_ahead(step)
            return reply
        if isinstance(step, Aggregate):
            self._log_reconnect()
            self._cursor, reply = open_cursor(self._watched.handle, step, self._session)
            return reply
        time.sleep(step.seconds)
        return None

    def _server_splits(self) -> bool:
        return splits_large_events(self._watched.client.server_info()["versionArray"])
