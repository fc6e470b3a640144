"""From events to records that are safe in a sink, and only then to a position: the commit order, in one place.

1. events are turned into records,
2. the sink takes the records,
3. the sink says that they are safe,
4. the position moves.

Before each of the steps 2 to 4 the holder makes sure that the stream is still its own (`Leader.check`).

A process may die between any two of these steps. Nothing waits for one event: many portions are on their way at once,
and the position moves to the end of the last one that is safe without a hole before it. A transactional sink does
steps 3 and 4 as one.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from tailrace.capture.formats import Format
from tailrace.capture.positions import Counts, Position
from tailrace.capture.positions.leader import Leader
from tailrace.capture.record import Record
from tailrace.capture.recovery.inventory import KeyInventory
from tailrace.capture.sinks import Sink, TransactionalSink
from tailrace.errors import Backpressure, EventUnconvertible
from tailrace.monitor import StreamMetrics

_REST_AFTER_A_SAVE = 29
"""A slow store is asked less often, so that saving never takes more than a thirtieth of the time."""

_BUSY_TRANSACTION_SECONDS = 0.5
"""How long a transaction grows while there is always more to read; with nothing to read it is committed at once."""

_kind = itemgetter(4, 3)  # operation and namespace; by name it takes three times as long

Hook = Callable[[str], None]
"""Called at named points of the commit order; tests kill the process there."""
SetAside = Callable[[bytes, EventUnconvertible], None]
"""Keeps an event that no record can be made of, durably, or raises when that is not wanted."""


def no_hook(_: str) -> None:
    """In production nothing happens at the named points."""


@dataclass(slots=True)
class Parcel:
    """Records on their way to the sink, and what becomes true when they are safe."""

    added: int
    """How many records the sink had been given with these."""
    position: Position | None
    """Where the stream stands then."""
    on_safe: Callable[[], None] | None
    records: list[Record]
    """For an inventory that keeps keys; else empty, because records are large."""
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    size: int = 0
    read_at: float = 0.0


class Delivery:
    """Delivers events in order through one sink, and moves the position behind them."""

    def __init__(
        self,
        format: Format,
        sink: Sink,
        set_aside: SetAside,
        leader: Leader,
        inventory: KeyInventory,
        metrics: StreamMetrics,
        *,
        commit_interval: float,
        hook: Hook,
        pause: Callable[[float], None],
    ) -> None:
        self._format = format
        self._sink = sink
        self._set_aside = set_aside
        self._leader = leader
        self._inventory = inventory
        self._metrics = metrics
        self._commit_interval = commit_interval
        self._hook = hook
        self._pause = pause
        self._pending: deque[Parcel] = deque()
        self._unsaved: Position | None = None
        self._next_commit = 0.0
        self._aside = 0
        self._letters = sink.dead_letters
        sink.bind(leader.seconds_left)
        self.saved = leader.position
        self.counts = self.saved.counts if self.saved else Counts()

    @property
    def waiting(self) -> bool:
        """Whether something was given to the sink that is not known to be safe."""
        return bool(self._pending)

    @property
    def transactional(self) -> bool:
        """Whether records become visible only with a commit."""
        return isinstance(self._sink, TransactionalSink)

    def deliver(
        self,
        events: Sequence[bytes],
        position: Position | None,
        on_safe: Callable[[], None] | None = None,
        *,
        records: list[Record] | None = None,
    ) -> None:
        """Give events to the sink; `position` and `on_safe` take effect when they are safe.

        `records` are those of the events, when they were made before.
        """
        read_at = time.monotonic()
        if records is None:
            records = self._records(events)
        kinds = Counter(map(_kind, records))
        self._hook("converted")
        added = self._add(records)
        self._hook("added")
        size = sum([len(record[1] or b"") for record in records])
        kept = records if self._inventory.keeps_keys else []
        self._pending.append(Parcel(added, position, on_safe, kept, kinds, size, read_at))

    def hurry(self) -> None:
        """Let the sink send at once what it holds back, because nothing more is there to be read."""
        if not self.transactional:  # a transaction is committed at such a moment, which sends everything
            self._check_lease()
            self._sink.hurry()

    def settle(self, *, now: bool = False) -> None:
        """Move the position to where the sink is safe, when it is time for that (or `now`)."""
        if isinstance(self._sink, TransactionalSink):
            self._commit(self._sink, now)
        else:
            self._save(now)

    def finish(self, timeout: float) -> None:
        """Wait until all is safe and move the position to the end."""
        self._check_lease()
        self._sink.flush(timeout)
        self.settle(now=True)

    def _records(self, events: Sequence[bytes]) -> list[Record]:
        try:
            return self._format.batch(events)
        except EventUnconvertible:
            return self._records_one_by_one(events)

    def _records_one_by_one(self, events: Sequence[bytes]) -> list[Record]:
        """Find the events that cannot be converted, and set them aside."""
        records: list[Record] = []
        convert = self._format.records
        for event in events:
            try:
                records.extend(convert(event))
            except EventUnconvertible as error:
                self._set_aside(event, error)
                self._aside += 1
                self._metrics.dead_letter(error.code)
        return records

    def _add(self, records: list[Record]) -> int:
        """Give records to the sink; while it is full, only what it acknowledges is worked on."""
        while True:
            self._check_lease()
            try:
                return self._sink.add(records)
            except Backpressure as full:
                self.settle(now=self.transactional)  # only a commit makes room there
                self._pause(full.retry_after)

    def _check_lease(self) -> None:
        """Write nothing after the end of the lease; a transaction of another's epoch is refused by its broker."""
        if not self.transactional:
            self._leader.check(in_flight=self.waiting)

    def _save(self, now: bool) -> None:
        self._check_lease()
        safe = self._sink.acknowledged()
        self._take_safe(safe)
        if self._unsaved is not None and (now or self._is_time()):
            self._hook("before-save")
            began = time.monotonic()
            self._leader.save(self._unsaved)
            self._hook("after-save")
            self._saved(self._unsaved, time.monotonic() - began)
        else:
            self._leader.keep()

    def _commit(self, sink: TransactionalSink, now: bool) -> None:
        if not self._pending:
            self._leader.keep()
            return
        if not (now or self._is_time()):
            return
        position = next((each.position for each in reversed(self._pending) if each.position), None) or self.saved
        if position is None:
            raise ValueError("a transactional sink is used from a first position on")
        self._hook("before-commit")
        began = time.monotonic()
        self._leader.renewed(sink.commit(self._counted(position), self._leader.lease))
        self._hook("after-commit")
        self._take_safe(self._pending[-1].added)
        self._saved(self._unsaved or position, time.monotonic() - began)

    def _take_safe(self, safe: int) -> None:
        while self._pending and self._pending[0].added <= safe:
            parcel = self._pending.popleft()
            self.counts = self.counts.plus(
                events=parcel.events.total(), bytes=parcel.size, batches=1, dead_letters=self._new_letters()
            )
            self._metrics.batch(parcel.events, parcel.size, time.monotonic() - parcel.read_at)
            if parcel.position is not None:
                self._unsaved = replace(parcel.position, counts=self.counts)
            if parcel.records:
                self._inventory.note(parcel.records)
            self._hook("acknowledged")
            if parcel.on_safe is not None:
                parcel.on_safe()

    def _new_letters(self) -> int:
        """Count what went to the dead letters since the last parcel: set aside here, or refused by the sink's server.

        A sink that keeps letters counts those that were set aside here too, because they share one place.
        """
        aside, self._aside = self._aside, 0
        refused = max(0, self._sink.dead_letters - self._letters - aside)
        self._letters = max(self._letters, self._sink.dead_letters)
        for _ in range(refused):
            self._metrics.dead_letter("record-refused")
        return aside + refused

    def _counted(self, position: Position) -> Position:
        events = sum(parcel.events.total() for parcel in self._pending)
        size = sum(parcel.size for parcel in self._pending)
        return replace(position, counts=self.counts.plus(events=events, bytes=size, batches=len(self._pending)))

    def _saved(self, position: Position, seconds: float) -> None:
        self.saved = position
        self._unsaved = None
        least = _BUSY_TRANSACTION_SECONDS if self.transactional else self._commit_interval
        self._next_commit = time.monotonic() + max(least, seconds * _REST_AFTER_A_SAVE)
        self._metrics.position(position.cluster_time)

    def _is_time(self) -> bool:
        return time.monotonic() >= self._next_commit
