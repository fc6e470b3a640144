"""From events to records that a sink has acknowledged, and only then to a position: the commit order, in one place.

1. events are turned into records,
2. the sink takes the records,
3. the sink acknowledges them,
4. the position moves.

Before each of the steps 2 to 4 the holder makes sure that the stream is still its own (`Leader.check`).

A process may die between any two of these steps. Nothing waits for one event: many batches are in flight at once, and
the position moves to the end of the last one that is acknowledged without a hole before it. A transactional sink does
steps 3 and 4 as one.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tailrace.capture.formats import Format
from tailrace.capture.formats.traced import traced_events
from tailrace.capture.positions import Counts, Position
from tailrace.capture.positions.leader import Leader
from tailrace.capture.record import Record, summary_of
from tailrace.capture.recovery.inventory import KeyInventory
from tailrace.capture.sinks import Sink, TransactionalSink
from tailrace.errors import Backpressure, EventUnconvertible, StoreUnavailable
from tailrace.logs import get_logger
from tailrace.monitor import StreamMetrics
from tailrace.retry import Backoff
from tailrace.telemetry import NO_TRACING, SampledEvent, Tracing

_log = get_logger("tailrace.capture")
_SAVE_TIMES_BETWEEN_SAVES = 29
"""A slow store is asked less often, so that saving never takes more than a thirtieth of the time."""
_SAVE_TIMES_WHEN_CAUGHT_UP = 4
"""With nothing to read and nothing in flight time is free, and what is not saved comes again after a kill."""

_SECONDS_UNTIL_ASKED_AGAIN = 0.5
_BUSY_TRANSACTION_SECONDS = 0.5
"""How long a transaction grows at least while the stream lags behind; when it has caught up it is committed at once."""
_LONGEST_TRANSACTION_SECONDS = 5.0
"""How long it grows where commits are slow: consumers wait for it, and the broker aborts it after half a minute."""

Hook = Callable[[str], None]
"""Called at named points of the commit order; tests kill the process there."""
DeadLetter = Callable[[bytes, EventUnconvertible], None]
"""Keeps an event that no record can be made of, durably, or raises when that is not wanted."""


def no_hook(_: str) -> None:
    """In production nothing happens at the named points."""


@dataclass(slots=True)
class InFlightBatch:
    """Records that the sink has not acknowledged yet, and what becomes true when it does."""

    added: int
    """How many records the sink had been given with these."""
    position: Position | None
    """Where the stream stands then."""
    on_acknowledged: Callable[[], None] | None
    records: Sequence[Record]
    """For an inventory that keeps keys; else empty, because records are large."""
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    size: int = 0
    read_at: float = 0.0
    sampled: Sequence[SampledEvent] = ()
    """The events of it that are traced."""
    read_ns: int = 0


class Delivery:
    """Delivers events in order through one sink, and moves the position behind them."""

    def __init__(
        self,
        format: Format,
        sink: Sink,
        dead_letter: DeadLetter,
        leader: Leader,
        inventory: KeyInventory,
        metrics: StreamMetrics,
        *,
        commit_interval: float,
        hook: Hook,
        pause: Callable[[float, str], None],
        backoff: Backoff,
        tracing: Tracing = NO_TRACING,
        stream: str = "",
    ) -> None:
        self._format = format
        self._sink = sink
        self._dead_letter = dead_letter
        self._leader = leader
        self._inventory = inventory
        self._metrics = metrics
        self._commit_interval = commit_interval
        self._hook = hook
        self._pause = pause
        self._backoff = backoff
        self._tracing = tracing
        self._stream = stream
        self._pending: deque[InFlightBatch] = deque()
        self._uncommitted: Position | None = None
        self._next_commit = self._next_commit_when_idle = self._next_renewal = 0.0
        self._dead_lettered = 0
        self._dead_letters = sink.dead_letters
        sink.bind(leader.seconds_left)
        self.committed = leader.position
        self.counts = self.committed.counts if self.committed else Counts()

    @property
    def waiting(self) -> bool:
        """Whether something was given to the sink that it has not acknowledged yet."""
        return bool(self._pending)

    @property
    def transactional(self) -> bool:
        """Whether records become visible only with a commit."""
        return isinstance(self._sink, TransactionalSink)

    def deliver(
        self, events: Sequence[bytes], position: Position | None, on_acknowledged: Callable[[], None] | None = None
    ) -> None:
        """Give events to the sink; `position` and `on_acknowledged` take effect when they are acknowledged."""
        read_at, read_ns = time.monotonic(), time.time_ns()
        records = self._records(events)
        sampled = self._tracing.sampled(traced_events(records)) if self._tracing.is_on else ()
        summary = summary_of(records)
        self._hook("converted")
        added = self._add(records)
        self._hook("added")
        kept = records if self._inventory.keeps_keys else []
        self._pending.append(
            InFlightBatch(
                added, position, on_acknowledged, kept, summary.kinds, summary.value_bytes, read_at, sampled, read_ns
            )
        )

    def start_flush(self) -> None:
        """Let the sink send at once what it has buffered, because nothing more is there to be read."""
        if not self.transactional:  # a transaction is committed at such a moment, which sends everything
            self._check_lease()
            self._sink.start_flush()

    def commit(self, *, now: bool = False, caught_up: bool = False) -> None:
        """Commit the position that the sink has acknowledged, when it is time for that (or `now`).

        A stream that has `caught_up` commits sooner: what waits for more would only be late.
        """
        if isinstance(self._sink, TransactionalSink):
            self._commit_transaction(self._sink, now or caught_up)
        else:
            self._commit_position(now, caught_up)

    def finish(self, timeout: float) -> None:
        """Wait until all is acknowledged and move the position to the end."""
        self._check_lease()
        self._sink.flush(timeout)
        self.commit(now=True)

    def _records(self, events: Sequence[bytes]) -> Sequence[Record]:
        try:
            return self._format.batch(events)
        except EventUnconvertible:
            return self._records_one_by_one(events)

    def _records_one_by_one(self, events: Sequence[bytes]) -> list[Record]:
        """Find the events that cannot be converted, and dead-letter them."""
        records: list[Record] = []
        convert = self._format.records
        for event in events:
            try:
                records.extend(convert(event))
            except EventUnconvertible as error:
                self._dead_letter(event, error)
                self._dead_lettered += 1
                self._metrics.dead_letter(error.code)
        return records

    def _add(self, records: Sequence[Record]) -> int:
        """Give records to the sink; while it is full, only what it acknowledges is worked on."""
        while True:
            self._check_lease()
            try:
                return self._sink.add(records)
            except Backpressure as full:
                self.commit(now=self.transactional)  # only a commit makes room there
                self._pause(full.retry_after, "the sink's buffer is full of what is not acknowledged")

    def _check_lease(self) -> None:
        """Write nothing after the end of the lease; a transaction of another's epoch is refused by its broker.

        While the lease cannot be renewed nothing is given to the sink, and what is in flight is acknowledged. If nobody
        else has the lease once the store is back, the stream goes on where it stands, and nothing is delivered twice.
        """
        while not self.transactional:
            try:
                self._leader.check(in_flight=self.waiting)
                break
            except StoreUnavailable as error:
                self._wait_for_store(error, "lease_not_renewed")

    def _wait_for_store(self, error: StoreUnavailable, event: str) -> None:
        """Wait a moment before the store is asked again, or raise the error when the retry budget is spent."""
        seconds = self._backoff.failed()
        if seconds is None:
            raise error
        self._note_store_away(error, event)
        until = time.monotonic() + min(seconds, _SECONDS_UNTIL_ASKED_AGAIN)
        while (left := until - time.monotonic()) > 0:
            self._pause(left, "the position store is away")
            self._advance(self._sink.acknowledged())

    def _note_store_away(self, error: StoreUnavailable, event: str) -> None:
        self._metrics.error(error.code)
        _log.warning(event, stream=self._stream, error=error.message[:300])

    def _commit_position(self, now: bool, caught_up: bool) -> None:
        """Save what is acknowledged; a store that is away is no reason to begin anew, which would deliver it again.

        While the lease lasts nobody else delivers, so the stream goes on without saving, unless it is to be done `now`.
        """
        while True:
            self._check_lease()
            self._advance(self._sink.acknowledged())
            try:
                return self._save_if_due(now, idle=caught_up and not self._pending)
            except StoreUnavailable as error:
                if not now:
                    return self._save_later(error)
                self._wait_for_store(error, "position_not_saved")

    def _save_later(self, error: StoreUnavailable) -> None:
        self._note_store_away(error, "position_not_saved")
        self._next_renewal = time.monotonic() + _SECONDS_UNTIL_ASKED_AGAIN
        self._next_commit = self._next_commit_when_idle = self._next_renewal

    def _save_if_due(self, now: bool, *, idle: bool) -> None:
        if self._uncommitted is not None and (now or self._is_time(idle=idle)):
            self._save(self._uncommitted)
        elif now or time.monotonic() >= self._next_renewal:
            self._leader.keep()

    def _save(self, position: Position) -> None:
        self._hook("before-save")
        began = time.monotonic()
        self._leader.save(position)
        self._hook("after-save")
        self._committed(position, time.monotonic() - began)

    def _commit_transaction(self, sink: TransactionalSink, now: bool) -> None:
        if not self._pending:
            self._leader.keep()
            return
        if not (now or self._is_time()):
            return
        position = next((each.position for each in reversed(self._pending) if each.position), None) or self.committed
        if position is None:
            raise ValueError("a transactional sink is used from a first position on")
        self._hook("before-commit")
        began = time.monotonic()
        self._leader.renewed(sink.commit(self._counted(position), self._leader.lease))
        self._hook("after-commit")
        self._advance(self._pending[-1].added)
        self._committed(self._uncommitted or position, time.monotonic() - began)

    def _advance(self, acknowledged: int) -> None:
        while self._pending and self._pending[0].added <= acknowledged:
            batch = self._pending.popleft()
            self.counts = self.counts.plus(
                events=batch.events.total(), bytes=batch.size, batches=1, dead_letters=self._new_dead_letters()
            )
            self._metrics.batch(batch.events, batch.size, time.monotonic() - batch.read_at)
            if batch.sampled:
                self._tracing.published(batch.sampled, self._stream, batch.read_ns)
            # The rows of a snapshot move no position, but they count: the last one is saved again with their counts.
            position = batch.position or self._uncommitted or self.committed
            if position is not None:
                self._uncommitted = replace(position, counts=self.counts)
            if batch.records:
                self._inventory.note(batch.records)
            self._hook("acknowledged")
            if batch.on_acknowledged is not None:
                batch.on_acknowledged()

    def _new_dead_letters(self) -> int:
        """Count what went to the dead letters since the last batch: by this process, or refused by the sink's server.

        A sink that keeps dead letters counts those of this process too, because they share one place.
        """
        own, self._dead_lettered = self._dead_lettered, 0
        refused = max(0, self._sink.dead_letters - self._dead_letters - own)
        self._dead_letters = max(self._dead_letters, self._sink.dead_letters)
        for _ in range(refused):
            self._metrics.dead_letter("record-refused")
        return own + refused

    def _counted(self, position: Position) -> Position:
        events = sum(batch.events.total() for batch in self._pending)
        size = sum(batch.size for batch in self._pending)
        return replace(position, counts=self.counts.plus(events=events, bytes=size, batches=len(self._pending)))

    def _committed(self, position: Position, seconds: float) -> None:
        self.committed = position
        self._uncommitted = None
        least = _BUSY_TRANSACTION_SECONDS if self.transactional else self._commit_interval
        longest = _LONGEST_TRANSACTION_SECONDS if self.transactional else math.inf
        moment = time.monotonic()
        self._next_commit = moment + min(longest, max(least, seconds * _SAVE_TIMES_BETWEEN_SAVES))
        self._next_commit_when_idle = moment + max(least, seconds * _SAVE_TIMES_WHEN_CAUGHT_UP)
        self._metrics.position(position.cluster_time)

    def _is_time(self, *, idle: bool = False) -> bool:
        return time.monotonic() >= (self._next_commit_when_idle if idle else self._next_commit)
