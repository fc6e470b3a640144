"""One change stream: the oplog's batches through the stages, pulled in batches, with the position after each."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from tailrace.engine.assembly import Assembly
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event, EventColumns, Events, run_stages
from tailrace.engine.images import ImageStore, NoImages
from tailrace.engine.options import StreamSpec
from tailrace.engine.split import MAX_EVENT, size_of
from tailrace.engine.user_stages import quick_bytes
from tailrace.errors import ChangeStreamError, OplogEntryInvalid
from tailrace.event import token_of
from tailrace.oplog.entry import OplogEntry
from tailrace.oplog.source import OplogBatch, OplogSource
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token.resume_token import ResumeToken

FIRST_BATCH: Final = 101
"""How many events a server puts into the first batch when nobody says."""
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
_ENTRIES_AT_ONCE: Final = 1_000
_FEW_ENTRIES: Final = 16
"""How many entries are worked on at once, at most, and at least when only a few events are asked for."""
STAGES_SLICE: Final = 0.2
"""The processor time after which stages with a budget give way to those of others, whatever is left to do."""


def open_stream(
    spec: StreamSpec,
    source: OplogSource,
    dialect: Dialect,
    *,
    latest: int,
    images: ImageStore | None = None,
    now: datetime | None = None,
) -> EngineStream:
    """Open a stream over an oplog; refusals are those of the upstream server.

    `latest` is the time of the newest entry: where a stream begins that was not told otherwise.
    `now` is what the user's stages see as `$$NOW`.
    """
    return EngineStream(spec, source, dialect, latest, images or NoImages(), now)


class EngineStream:
    """A change stream: pull batches; after each, `post_batch_resume_token` is where it stands."""

    def __init__(
        self,
        spec: StreamSpec,
        source: OplogSource,
        dialect: Dialect,
        latest: int,
        images: ImageStore,
        now: datetime | None,
    ) -> None:
        self.spec = spec
        self.is_closed = False
        self._dialect = dialect
        self._source = source
        self._assembly = Assembly(spec, dialect, images, self._entry_at, latest=latest, now=now)
        self.token_version = self._assembly.token_version
        """The version of the tokens that this stream makes behind its start."""
        self.post_batch_resume_token, self._position_time = self._start(latest)
        """The position after the last batch: of its last event, or of what was read beyond it."""
        self._reader = source.open(self._position_time)
        self.reached = self._position_time
        """The time until which the oplog was read."""
        self.operation_time = 0
        """How far the server was when it gave what was read last; 0 when it did not say."""
        self._latest = latest
        self.is_at_end = False
        """Whether the server had nothing more to give when it was asked last.

        It then waited for entries in vain; or it gave all that a majority had, which was no less than what there was
        when the stream was opened: a server that is busy with other collections never waits.
        """
        self._ready: deque[Event] = deque()
        self._read = OplogBatch([], self._position_time)
        self._made: Iterator[Events] | None = None
        """The events of the batch that was read from the oplog last; None when all of them are made."""
        self.unfinished: Events = []
        """The events of the batch that is read, or in which an error was met; a server gives none of those."""
        self._is_first_batch = True
        self._is_drained = False
        self._events_at_once = self._assembly.events_at_once
        self._is_sliced = spec.stage_seconds is not None and bool(spec.stages)
        self._quick_bytes = quick_bytes(spec.stages)

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of entries are held from which events are still to be made."""
        return sum(map(len, self._read.entries)) if self.is_unfinished else 0

    @property
    def is_unfinished(self) -> bool:
        """Whether there is more to give of what was read from the oplog last."""
        return self._made is not None

    @property
    def is_caught_up(self) -> bool:
        """Whether all that was read has been given, and the event to resume after was met.

        From here on a stream of the same options that begins behind `reached` gives the same events.
        """
        check = self._assembly.position_check
        return self._is_drained and (check is None or check.is_found)

    def next_batch(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES) -> list[Event]:
        """Give the next events as a list; see `next_events`."""
        return list(self.next_events(max_events, max_bytes))

    def next_events(self, max_events: int | None = None, max_bytes: int = MAX_BATCH_BYTES) -> Events:
        """Pull events until the batch is full or the oplog has nothing more for now.

        At least one event comes, whatever its size. After an invalidate the stream is closed. Stages that have a budget
        for each event may use it up for every one of a long batch, so they are stopped after a while; the next call
        goes on.
        """
        try:
            return self._read_batch(max_events, max_bytes)
        except ChangeStreamError as error:
            self.close()
            raise self._with_server_prefix(error) from error.__cause__
        except RecursionError as error:
            self.close()
            raise OplogEntryInvalid("an oplog entry is nested deeper than servers allow") from error
        finally:
            self._is_first_batch = False

    def _read_batch(self, max_events: int | None, max_bytes: int) -> Events:
        batch: Events = []
        self.unfinished = batch
        if max_events == 0:
            return batch
        self._is_drained = False
        limit: _BatchLimit | None = None
        deadline = time.thread_time() + STAGES_SLICE if self._is_sliced else math.inf
        is_full = is_late = False
        while True:
            if self._ready:
                batch = self.unfinished = batch if isinstance(batch, list) else list(batch)
                limit = limit or _BatchLimit(batch, max_events, max_bytes)
                is_full = limit.fill(batch, self._ready)
            is_full = is_full or (is_late and self.is_unfinished)
            if is_full:
                break
            if self.is_closed or self._assembly.invalidate.token is not None or not self._has_oplog_batch(max_events):
                self.close()
                break
            made = None if self._made is None else next(self._made, None)
            is_late = self._is_sliced and time.thread_time() > deadline
            if made is None:
                self._finish_oplog_batch()
                break
            is_whole = isinstance(made, EventColumns) and made.size <= max_bytes
            if is_whole and not batch and (max_events is None or len(made) < max_events):
                batch = self.unfinished = made
            else:
                self._ready.extend(made)
        self._move_behind(batch, is_full=is_full)
        return batch

    def close(self) -> None:
        """Stop reading, and free what the reader holds."""
        self.is_closed = True
        self._reader.close()

    def abandon(self) -> None:
        """Stop reading, and forget what was read and not given."""
        self.close()
        self._made = None
        self._read = OplogBatch([], self.reached)
        self._ready.clear()

    # --- position

    def _start(self, latest: int) -> tuple[ResumeToken, int]:
        """Give the position before the first event, and the time to read from."""
        options = self.spec.options
        if options.token is not None and self.spec.start_token is not None:
            return options.token, ClusterTime.from_timestamp(self.spec.start_token.cluster_time)
        time = options.start_at_operation_time
        if time is None:
            time = ClusterTime(latest + 1).timestamp
        return ResumeToken.high_water_mark(time, self.token_version), ClusterTime.from_timestamp(time)

    def _move_behind(self, batch: Events, *, is_full: bool) -> None:
        """Advance to the last event, and beyond entries that gave none, so that a quiet stream does not age out.

        A closed stream stands at its invalidate, even when the user's stages left that out (since 6.0).
        """
        if batch:
            last = batch[-1]
            self.post_batch_resume_token = ResumeToken.parse(token_of(last.raw))
            self._position_time = last.cluster_time
        if is_full:
            return
        if self.is_closed:
            if self._dialect.ends_at_invalidate:
                self.post_batch_resume_token = self._assembly.invalidate.token or self.post_batch_resume_token
        elif self.reached > self._position_time:
            time = ClusterTime(self.reached).timestamp
            self.post_batch_resume_token = ResumeToken.high_water_mark(time, self.token_version)
            self._position_time = self.reached

    # --- events

    def _has_oplog_batch(self, max_events: int | None) -> bool:
        """Begin with the next batch of the oplog when the last one is done; False when there will be none."""
        if self._made is not None:
            return True
        read = next(self._reader, None)
        if read is None:
            return False
        self._read = read
        self.operation_time = read.operation_time
        if self._assembly.is_searching:
            self._assembly.drop_finished_searches()
        at_once = _ENTRIES_AT_ONCE if max_events is None else min(max(max_events, _FEW_ENTRIES), _ENTRIES_AT_ONCE)
        self._made = self._events_of(read.entries, at_once)
        return True

    def _finish_oplog_batch(self) -> None:
        """Note what a batch of the oplog says when all its events are given: a reader may wait before the next one."""
        read, self._made = self._read, None
        self._read = OplogBatch([], read.reached)
        self._is_drained = True
        self.reached = read.reached
        self.is_at_end = not read.entries or (0 < read.operation_time <= read.reached and self._latest <= read.reached)

    def _events_of(self, entries: Sequence[bytes], at_once: int) -> Iterator[Events]:
        """Run the stages on entries, some at a time; an error ends the stream when all events before it were taken."""
        try:
            for begin in range(0, len(entries), at_once):
                part = entries if len(entries) <= at_once else entries[begin : begin + at_once]
                for events in self._assembly.make_events(part):
                    is_small = isinstance(events, EventColumns) and events.size <= MAX_EVENT
                    if is_small and self._assembly.is_passed_through:
                        yield events
                    else:
                        yield from self._staged(events)
        except Exception:
            self.close()
            raise

    def _staged(self, events: Events) -> Iterator[Events]:
        step = self._step(events)
        for first in range(0, len(events), step):
            made, error = run_stages(self._assembly.stages, events[first : first + step])
            yield made
            if error is not None:
                raise error

    def _step(self, events: Events) -> int:
        """Give how many events go through the stages at once: where those have a budget, few enough to stop in time."""
        if self._is_sliced and size_of(events) > self._quick_bytes:
            return 1
        return self._events_at_once or len(events) or 1

    def _with_server_prefix(self, error: ChangeStreamError) -> ChangeStreamError:
        """Put before the message what the server puts there, which is another for the first batch."""
        prefix = self._dialect.first_batch_prefix
        message = error.message.removeprefix(prefix)
        error.message = (prefix if self._is_first_batch else self._dialect.next_batch_prefix) + message
        error.args = (error.message,)
        return error

    def _entry_at(self, time: int) -> OplogEntry:
        return OplogEntry(self._source.entry_at(time))


class _BatchLimit:
    """Fills a batch with events until it has as many, or as many bytes, as were asked for."""

    def __init__(self, batch: list[Event], max_events: int | None, max_bytes: int) -> None:
        self._events_left = None if max_events is None else max_events - len(batch)
        self._bytes_left = max_bytes - size_of(batch)

    def fill(self, batch: list[Event], ready: deque[Event]) -> bool:
        """Move events into the batch; True when it is full. One event always fits."""
        size = size_of(ready)
        if size <= self._bytes_left and (self._events_left is None or len(ready) < self._events_left):
            self._bytes_left -= size
            if self._events_left is not None:
                self._events_left -= len(ready)
            batch += ready
            ready.clear()
            return False
        while ready:
            size = len(ready[0].raw)
            if size > self._bytes_left and batch:
                return True
            self._bytes_left -= size
            batch.append(ready.popleft())
            if self._events_left is not None:
                self._events_left -= 1
                if self._events_left == 0:
                    return True
        return False
