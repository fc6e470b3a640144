"""What both kinds of change stream have in common: everything but the I/O."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

import bson

from tailrace.client import AsyncRawCursor, RawCursor, end_session, is_time_limited, start_session, time_limit
from tailrace.driver.options import WatchOptions
from tailrace.driver.resume import ResumableStream, ResumeBudget
from tailrace.driver.target import AsyncTarget, Target, Watched
from tailrace.logs import get_logger

_log = get_logger("tailrace.driver")
D = TypeVar("D")
C = TypeVar("C", RawCursor, AsyncRawCursor)


class Shell(Generic[D, C]):
    """The logic of one stream, the session and the cursor it uses, and what users may ask of it."""

    def __init__(
        self, target: Target | AsyncTarget, pipeline: Sequence[Mapping[str, Any]], options: WatchOptions
    ) -> None:
        self._watched = Watched.of(target, options)
        self._options = options
        timeout = self._watched.client.options.timeout
        seconds = timeout if options.timeout_ms is None else options.timeout_ms / 1000
        self._time_limit: Callable[[], AbstractContextManager[Any]]
        """Limits how long one call may take."""
        self._time_limit = nullcontext if seconds is None else partial(time_limit, seconds)
        budget = ResumeBudget(options.resume_budget, time.monotonic, random.random)
        self._stream = ResumableStream(self._watched.scope, pipeline, options, budget)
        self._session = options.session or start_session(self._watched.client)
        self._cursor: C | None = None
        self._working = False
        self._was_open = False
        # One call less for every event than a method would need.
        decode: Any = partial(bson.decode, codec_options=self._watched.codec)
        self._decode: Callable[[bytes], D] = decode

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        """The token to resume after the last event that was returned, or further on if nothing followed."""
        return self._stream.resume_token

    @property
    def alive(self) -> bool:
        """Whether there may be more events."""
        return self._stream.alive

    def _may_read_ahead(self, cursor: C) -> bool:
        """Whether the server may work on the next batch while the user works on this one.

        Not under a time limit, which is for this call alone, and not in the user's session, which the user may
        be using meanwhile.
        """
        return self.alive and cursor.may_read_ahead and self._options.session is None and not is_time_limited()

    def _log_reconnect(self) -> None:
        """Log that the stream is opened again; the first time it is opened is no reconnect."""
        if self._was_open:
            _log.info("change_stream_reconnects", scope=str(self._watched.scope))
        self._was_open = True

    def _expect_decoded(self) -> None:
        """Let small replies be decoded as a whole, with their events: these are wanted so, one by one."""
        if self._cursor is not None:
            self._cursor.reader.decodes = True

    def _interrupt(self) -> None:
        """Give the cursor up after a cancellation, Ctrl-C or the like; iterating again resumes."""
        self._stream.interrupted()
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.abandon()

    def _end_session(self) -> Awaitable[None] | None:
        """Give the session back, unless a command still runs with it: then that one's end does it."""
        if self._options.session is None and not self._working:
            return end_session(self._session)
        return None
