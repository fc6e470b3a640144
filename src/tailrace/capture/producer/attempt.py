"""One attempt to follow a stream: an error throws it away, and the next one is made anew from what is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.capture.formats import Format
from tailrace.capture.positions import Counts, Lease, Position, PositionStore
from tailrace.capture.positions.leader import Leader
from tailrace.capture.producer.control import Controls, FirstStep, ProducerOptions, Stopped
from tailrace.capture.producer.delivery import DeadLetter, Delivery, Hook
from tailrace.capture.producer.heartbeat import Heartbeat
from tailrace.capture.producer.merging import Merge
from tailrace.capture.producer.snapshot_delivery import SnapshotDelivery
from tailrace.capture.producer.status import ProducerStatus
from tailrace.capture.recovery.inventory import KeyInventory
from tailrace.capture.recovery.machine import Action, RecoveryEvent, RecoveryState, answer
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.sinks import Sink
from tailrace.capture.source.reader import Quarantine, ReadBatch, StreamReader
from tailrace.capture.source.source import EventSource, Start
from tailrace.driver import token_of
from tailrace.errors import GapOpen
from tailrace.event import ChangeEvent
from tailrace.logs import get_logger
from tailrace.monitor import StreamMetrics
from tailrace.retry import Backoff
from tailrace.token import ResumeToken

_log = get_logger("tailrace.capture")
_LONGEST_WAIT = 0.05
"""Seconds that the loop waits for something to read before it checks acknowledgements and the lease."""
_WAIT_WHEN_PENDING = 0.002
_SECONDS_BETWEEN_SHOWS = 0.25
_RENAME = b"\x02operationType\x00\x07\x00\x00\x00rename\x00"
"""How the field is in the bytes of an event."""
_EVENTS = {
    FirstStep.GO_ON: RecoveryEvent.BEGIN,
    FirstStep.SNAPSHOT: RecoveryEvent.ASK_SNAPSHOT,
    FirstStep.RECOVER: RecoveryEvent.ASK_RECOVER,
    FirstStep.START_NOW: RecoveryEvent.ASK_START_NOW,
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What stays the same from attempt to attempt."""

    source: EventSource
    store: PositionStore
    format: Format
    make_sink: Callable[[], Sink]
    dead_letter: DeadLetter
    inventory: KeyInventory
    options: ProducerOptions
    hook: Hook
    controls: Controls
    status: ProducerStatus
    metrics: StreamMetrics
    quarantine: Quarantine
    backoff: Backoff
    journal: Journal


class Attempt:
    """Begins where the position is, reads ahead in a thread of its own, and lets the rows of a snapshot in."""

    def __init__(self, parts: Parts, leader: Leader, *, start_at_time: bool, end_time: Timestamp | None = None) -> None:
        """`end_time` is where a run that is to end by itself has delivered enough."""
        self._end_time = end_time
        self._parts = parts
        self._source = parts.source
        self._options = parts.options
        self._status = parts.status
        self._leader = leader
        self.start_at_time = start_at_time
        """Whether the token is no use, and the stored time is."""
        self.moved = False
        """Whether anything was delivered."""
        self.delivery: Delivery | None = None
        self.snapshot: SnapshotDelivery | None = None
        self._reader: StreamReader
        self._recovery: Recovery
        self._merge = Merge(None)
        self._delivered: DeliveredFilter | None = None
        self._heartbeat: Heartbeat | None = None
        self._next_show = 0.0
        self._caught_up = True
        """Whether nothing waited behind the last batch."""
        self._begins_anew = False
        """Whether a rename has changed what is to be read of the snapshot."""

    def follow(self) -> bool:
        """Follow the stream until an error or an interruption; gives whether all was done that was to be done."""
        parts, controls = self._parts, self._parts.controls
        with ExitStack() as opened:
            self._recovery = Recovery(self._source, parts.store.cells, self._options.name, parts.inventory)
            parts.quarantine.add_all(self._recovery.lost_tokens())
            sink = opened.enter_context(parts.make_sink())
            sink.setup()
            self._prepare()
            self.delivery = delivery = self._make_delivery(sink)
            start = self._start(delivery)
            parts.journal.opened(start)
            self._reader = StreamReader(self._ordered(), start, parts.quarantine, self._options.buffer_bytes)
            opened.callback(self._reader.close)
            self.snapshot = self._open_snapshot(delivery, opened)
            self._heartbeat = self._status.heartbeat = self._open_heartbeat(opened)
            self._merge = Merge(self.snapshot.backfill if self.snapshot else None)
            parts.hook("opened")
            while not (controls.interrupts or self._begins_anew or self._is_done()):
                self._run_once(delivery)
            delivery.finish(self._options.flush_timeout)
            self._show(delivery, now=True)
        return self._is_done()

    # --- where it begins

    def _prepare(self) -> None:
        """See to it that there is a position to begin at, and that no gap is passed over."""
        step = self._parts.controls.step
        event, asked_by = _EVENTS[step.kind], step.kind.value
        state = self._recovery.state(self._leader.position)
        if state is RecoveryState.NEW and self._options.start == "now" and event is not RecoveryEvent.ASK_START_NOW:
            event, asked_by = RecoveryEvent.ASK_START_NOW, "the setting start = now"
        begins = answer(state, event)[0] is Action.RECOVER
        if begins and not self._options.recover and event is not RecoveryEvent.ASK_RECOVER:
            raise GapOpen(f"a gap of {self._options.name} is open")
        self._recovery.begin(event, self._leader, asked_by=asked_by, only=step.collections)
        gap = self._recovery.ledger.open_gap()
        if gap is not None:
            self._status.lost(gap.number, gap.turns, 0.0)
        if begins:
            self._parts.hook("recovery-begun")
        self._parts.controls.taken(step)

    def _make_delivery(self, sink: Sink) -> Delivery:
        parts = self._parts
        return Delivery(
            parts.format,
            sink,
            parts.dead_letter,
            self._leader,
            parts.inventory,
            parts.metrics,
            commit_interval=self._options.commit_interval,
            hook=parts.hook,
            pause=self._pause,
            backoff=parts.backoff,
            tracing=self._options.tracing,
            stream=self._options.name,
        )

    def _start(self, delivery: Delivery) -> Start:
        """Choose token or time; a start by time is logged."""
        position = delivery.committed
        assert position is not None  # _prepare saw to it
        reason = None
        if position.fingerprint and position.fingerprint != self._source.fingerprint:
            reason = "the namespaces, the pipeline or the options of the stream have changed"
        elif self.start_at_time:
            reason = "the server does not understand the token"
        if position.token is not None and reason is None:
            return Start(position.resume_token)
        if position.token is not None:
            self._delivered = DeliveredFilter(position.token)
        time_ = position.cluster_time
        _log.warning("stream_begins_at_cluster_time", why=reason or "no token", time=time_.time)
        return Start(time=time_)

    def _ordered(self) -> EventSource:
        """Have all shards wait for each other while rows of a snapshot find their place between the events."""
        return self._source if self._recovery.progress.unfinished is None else self._source.in_strict_order()

    def _open_snapshot(self, delivery: Delivery, opened: ExitStack) -> SnapshotDelivery | None:
        state = self._recovery.progress.unfinished
        self._status.recovering(state is not None and state.gap is not None)
        if state is None:
            return None
        parts = self._parts
        snapshot = SnapshotDelivery(self._source, self._recovery, delivery, self._options, self._status, parts.hook)
        opened.callback(snapshot.backfill.close)
        return snapshot

    def _open_heartbeat(self, opened: ExitStack) -> Heartbeat | None:
        location, every = self._source.selection.heartbeat, self._options.heartbeat_seconds
        if location is None or not every:
            return None
        heartbeat = Heartbeat(self._source.client, location, self._options.name, every, self._parts.metrics.heartbeat)
        opened.enter_context(heartbeat.writing())
        return heartbeat

    # --- one iteration

    def _is_done(self) -> bool:
        """Whether a run that is to end by itself has nothing left to do.

        Batches prove nothing here: one may be empty because the server took its time, with more to come.
        """
        if self._end_time is None or self.snapshot is not None or self._begins_anew:
            return False
        return self._merge.has_passed(self._end_time)

    def _run_once(self, delivery: Delivery) -> None:
        batch = self._merge.next_batch(lambda: self._read(delivery))
        if batch is not None:
            self._take(delivery, batch)
        if self.snapshot is not None and self.snapshot.take_rows(self._merge):
            self.snapshot = None
        if batch is not None:
            self._caught_up = self._is_caught_up(batch)
        delivery.commit(caught_up=self._caught_up)
        if batch is not None:
            self._status.observed(batch.operation_time)
            if batch.events and not self._reader.buffered:
                delivery.start_flush()
        self._show(delivery)

    def _is_caught_up(self, batch: ReadBatch) -> bool:
        """Whether nothing waits behind a batch: a transaction that waits for more then only makes its events late.

        While a stream catches up, its transactions grow instead, also when delivery is faster than reading.
        """
        return not batch.events or (batch.is_recent and not self._reader.buffered)

    def _read(self, delivery: Delivery) -> ReadBatch | None:
        """Take what was read; when reading failed, what was read before is committed first."""
        wait = _WAIT_WHEN_PENDING if delivery.waiting or self.snapshot else _LONGEST_WAIT
        try:
            return self._reader.get(wait)
        except Exception:
            delivery.finish(self._options.flush_timeout)
            raise

    def _take(self, delivery: Delivery, batch: ReadBatch) -> None:
        for index in raw.documents_with(batch.events, _RENAME):
            self._follow_rename(ChangeEvent(batch.events[index]))
        events = batch.events if self._heartbeat is None else self._heartbeat.without_marks(batch.events)
        events = self._source.selection.slice.keep(events)
        if self._delivered is not None:
            events = self._new_events(self._delivered, events, batch.token)
        self._parts.hook("read")
        position = None
        if batch.token is not None and self._delivered is None:
            position = Position.behind(batch.token, fingerprint=self._source.fingerprint)
        delivery.deliver(events, position)
        self._merge.delivered(batch)
        self._parts.backoff.progressed()
        self.moved = True

    def _follow_rename(self, event: ChangeEvent) -> None:
        if event.operation_type == "rename" and self._recovery.renamed(event):
            self._begins_anew = True

    def _new_events(self, delivered: DeliveredFilter, events: list[bytes], token: bytes | None) -> list[bytes]:
        """Drop what was delivered before; until the stream is past it, the position stays where it is."""
        kept = delivered.keep(events, token)
        if delivered.passed:
            _log.info("redelivery_finished", dropped=delivered.dropped)
            self._delivered, self.start_at_time = None, False
        return kept

    def _pause(self, seconds: float, reason: str) -> None:
        """Wait while the sink may be given nothing; the reading thread waits too, once its buffer is full."""
        self._status.delivery_waits(reason)
        if self.delivery is not None:
            self._show(self.delivery)
        self._parts.controls.wait(min(seconds, _LONGEST_WAIT))
        if self._parts.controls.paused:
            raise Stopped

    def _show(self, delivery: Delivery, *, now: bool = False) -> None:
        if not now and time.monotonic() < self._next_show:
            return
        self._next_show = time.monotonic() + _SECONDS_BETWEEN_SHOWS
        if delivery.committed is not None:
            self._status.moved(delivery.committed, delivery.counts)
            self._parts.journal.stands_at(delivery.committed, delivery.counts)
        buffered = self._reader.buffered
        self._parts.metrics.buffer(buffered, self._options.buffer_bytes)
        self._status.buffered = buffered
        self._status.beat()
        self._parts.metrics.state(self._status.liveness().state)


class DeliveredFilter:
    """Lets through only what comes after a position.

    Tokens of one version compare as their keys do. Those of another version (after an up- or downgrade of the
    server) are compared by time alone, and events of the very same time are let through: twice is better than never.
    """

    def __init__(self, delivered: bytes) -> None:
        self._last = ResumeToken.parse(delivered)
        self.dropped = 0
        self.passed = False
        """Whether the stream is past what was delivered before: nothing has to be dropped from there on."""

    def keep(self, events: list[bytes], position: bytes | None = None) -> list[bytes]:
        """Give the events that were not delivered before; `position` is where the stream stands after them."""
        if self.passed:
            return events
        for index, event in enumerate(events):
            if not self._is_delivered(ResumeToken.parse(token_of(event))):
                self.passed = True
                self.dropped += index
                return events[index:]
        self.dropped += len(events)
        self.passed = position is not None and ResumeToken.parse(position).cluster_time > self._last.cluster_time
        return []

    def _is_delivered(self, token: ResumeToken) -> bool:
        if token.key[9:11] == self._last.key[9:11]:  # the version, which follows the time
            return token <= self._last
        return token.cluster_time < self._last.cluster_time


_SECONDS_BETWEEN_POSITIONS = 60.0


class Journal:
    """One line for each step, never the same one again and again."""

    def __init__(self, stream: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._is_waiting = False
        self._next_position = 0.0

    def waits_for_lease(self) -> None:
        """Log that another process holds the lease, once."""
        if not self._is_waiting:
            self._is_waiting = True
            _log.info("waiting_for_lease", stream=self._stream)

    def elected(self, lease: Lease) -> None:
        """Log that this process owns the stream now."""
        what = "lease_taken_over" if self._is_waiting else "lease_taken"
        self._is_waiting = False
        _log.info(what, stream=self._stream, owner=lease.owner, epoch=lease.epoch, seconds=lease.seconds)

    def opened(self, start: Start) -> None:
        """Log where the stream begins, at the start and after each reconnect."""
        _log.info("stream_opened", stream=self._stream, start=str(start))
        self._next_position = self._clock() + _SECONDS_BETWEEN_POSITIONS

    def stands_at(self, position: Position, counts: Counts) -> None:
        """Log the committed position, once a minute."""
        if self._clock() < self._next_position:
            return
        self._next_position = self._clock() + _SECONDS_BETWEEN_POSITIONS
        time_ = position.cluster_time
        _log.info("position", stream=self._stream, cluster_time=f"{time_.time},{time_.inc}", events=counts.events)
