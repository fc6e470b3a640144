"""`Producer`: owns a stream, forwards it into a sink, and can be killed at any moment.

It decides where to begin (a stored position, a first snapshot, a recovery), reads ahead in a thread of its own, lets
the rows of a snapshot in at their places, and answers every error as the classifier says. How records become safe
and positions move is the business of `Delivery`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from tailrace.capture.backoff import Backoff
from tailrace.capture.classifier import Remedy, Verdict, classify
from tailrace.capture.delivered import DeliveredFilter
from tailrace.capture.delivery import Delivery, Hook, SetAside, no_hook
from tailrace.capture.formats import Format
from tailrace.capture.gaps import GapState
from tailrace.capture.garbage import rare_collections
from tailrace.capture.inventory import KeyInventory
from tailrace.capture.leader import Leader
from tailrace.capture.merging import Merge
from tailrace.capture.positions import Position, PositionStore
from tailrace.capture.producer_options import FirstStep, ProducerOptions
from tailrace.capture.quarantine import Quarantine
from tailrace.capture.reader import EVENTS_PER_PORTION, Portion, StreamEnded, StreamReader
from tailrace.capture.recovery import Recovery
from tailrace.capture.sinks import Sink
from tailrace.capture.snapshot import Backfill, KeyCheck, Rows
from tailrace.capture.source import EventSource, Start, token_time
from tailrace.capture.status import ProducerStatus, SnapshotStatus
from tailrace.errors import GapOpen, LeaseHeld, Outcome, StreamInvalidated
from tailrace.monitor import StreamMetrics
from tailrace.token import ResumeToken

_log = structlog.get_logger("tailrace.capture")
_LONGEST_WAIT = 0.05
"""Seconds that the loop waits for something to read before it looks at acknowledgements and the lease."""
_WAIT_WHEN_PENDING = 0.002
_SECONDS_BETWEEN_SHOWS = 0.25


class Producer:
    """One stream into one sink. `run` returns after `stop` was called, or raises what the classifier stops at."""

    def __init__(
        self,
        source: EventSource,
        store: PositionStore,
        format: Format,
        make_sink: Callable[[], Sink],
        set_aside: SetAside,
        inventory: KeyInventory,
        options: ProducerOptions,
        *,
        hook: Hook = no_hook,
    ) -> None:
        self._source = source
        self._store = store
        self._format = format
        self._make_sink = make_sink
        self._set_aside = set_aside
        self._inventory = inventory
        self._options = options
        self._hook = hook
        self._stopping = threading.Event()
        self._quarantine = Quarantine()
        self._backoff = Backoff(options.backoff)
        self._metrics = StreamMetrics(options.name)
        self.status = ProducerStatus(options.name)
        # What belongs to one attempt; an error throws it away.
        self._attempt: ExitStack = ExitStack()
        self._leader: Leader
        self._recovery: Recovery
        self._delivery: Delivery
        self._reader: StreamReader
        self._backfill: Backfill | None = None
        self._backfill_began = 0.0
        self._rows_unsafe = 0
        self._deletes_found = 0
        self._merge = Merge(None)
        self._moved = False
        self._next_show = 0.0
        self._delivered: DeliveredFilter | None = None
        self._start_at_time = False
        self._first_step = options.first_step

    @property
    def backfilling(self) -> bool:
        """Whether a snapshot is under way beside the stream."""
        return self._backfill is not None

    @property
    def delivered(self) -> int:
        """Events that are safe in the sink, ever, under this name."""
        delivery: Delivery | None = getattr(self, "_delivery", None)  # none before the first attempt
        return delivery.counts.events if delivery else 0

    def stop(self) -> None:
        """Ask `run` to end; may be called from any thread or signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Wait for the lease, then follow the stream until `stop`."""
        leader = self._elect()
        if leader is None:
            return
        with leader, rare_collections():
            self._leader = leader
            while not self._stopping.is_set():
                try:
                    self._follow()
                except Exception as error:
                    self._answer_safely(error)

    def _elect(self) -> Leader | None:
        """Become the one who moves the position; a store that is away is waited for. None when told to stop."""
        options = self._options
        while not self._stopping.is_set():
            try:
                return Leader.elect(
                    self._store,
                    options.name,
                    seconds=options.lease_seconds,
                    timeout=options.lease_timeout,
                    sleep=self._sleep,
                )
            except LeaseHeld:
                raise
            except _Stopped:
                break
            except Exception as error:
                self._stopping.wait(self._pause_after(error, classify(error)))
        return None

    # --- one attempt

    def _follow(self) -> None:
        """Set everything up and go round until an error or the end."""
        with ExitStack() as self._attempt:
            self._recovery = Recovery(self._source, self._store.cells, self._options.name, self._inventory)
            self._quarantine.add_all(self._recovery.lost_tokens())
            sink = self._attempt.enter_context(self._make_sink())
            sink.setup()
            self._prepare()
            self._delivery = self._make_delivery(sink)
            start = self._start()
            self._reader = StreamReader(self._source, start, self._quarantine, self._options.buffer_bytes)
            self._attempt.callback(self._reader.close)
            self._open_backfill()
            self._merge, self._moved = Merge(self._backfill), False
            self._hook("opened")
            while not self._stopping.is_set() and not self._is_done():
                self._go_round()
            self._delivery.finish(self._options.flush_timeout)
            self._show(now=True)
            self._stopping.set()

    def _prepare(self) -> None:
        """See to it that there is a position to begin at, and that no gap is passed over."""
        step = self._first_step
        gap = self._recovery.ledger.open_gap()
        if step is FirstStep.START_NOW:
            self._recovery.begin_now(self._leader, asked_by=step.value)
        elif gap is not None and gap.state is GapState.OPEN:
            self._recover(gap.reason)
        elif self._leader.position is None:
            self._begin_first()
        elif step is FirstStep.RECOVER:
            self._recover(step.value)
        elif step is FirstStep.SNAPSHOT and self._recovery.progress.unfinished is None:
            self._recovery.progress.begin(step.value)
        self._first_step = FirstStep.GO_ON

    def _begin_first(self) -> None:
        if self._options.start == "now":
            self._recovery.begin_now(self._leader, asked_by="the setting start = now")
        else:
            self._recovery.begin_first(self._leader)

    def _make_delivery(self, sink: Sink) -> Delivery:
        return Delivery(
            self._format,
            sink,
            self._set_aside,
            self._leader,
            self._inventory,
            self._metrics,
            commit_interval=self._options.commit_interval,
            hook=self._hook,
            pause=self._pause,
        )

    def _start(self) -> Start:
        """Choose token or time, and say so when it is the time."""
        position = self._delivery.saved
        assert position is not None  # _prepare saw to it
        self._delivered = None
        reason = None
        if position.fingerprint and position.fingerprint != self._source.fingerprint:
            reason = "the namespaces, the pipeline or the options of the stream have changed"
        elif self._start_at_time:
            reason = "the server does not understand the token"
        if position.token is not None and reason is None:
            return Start(position.token)
        if position.token is not None:
            self._delivered = DeliveredFilter(position.token)
        time_ = position.cluster_time
        _log.warning("the stream begins at the stored cluster time", why=reason or "no token", time=time_.time)
        return Start(time=time_)

    def _open_backfill(self) -> None:
        state = self._recovery.progress.unfinished
        self._backfill = None
        self.status.recovering(state is not None and state.gap is not None)
        if state is None:
            return
        self._backfill = Backfill(
            self._source.client,
            self._recovery.pieces(self._options.chunk_bytes),
            workers=self._options.snapshot_workers,
            documents_per_second=self._options.snapshot_documents_per_second,
            backoff=self._options.backoff,
        )
        self._attempt.callback(self._backfill.close)
        self._backfill_began = time.monotonic()
        self._rows_unsafe = self._deletes_found = 0

    def _go_round(self) -> None:
        portion = self._merge.next_portion(self._read)
        if portion is not None:
            self._take(portion)
        if self._backfill is not None:
            self._take_rows(self._backfill)
        idle = portion is None or not portion.events
        self._delivery.settle(now=idle and self._delivery.transactional)
        if portion is not None:
            self.status.seen(portion.operation_time)
        self._show()

    def _read(self) -> Portion | None:
        """Take what was read; when reading failed, what was read before is made safe first."""
        wait = _WAIT_WHEN_PENDING if self._delivery.waiting or self._backfill else _LONGEST_WAIT
        try:
            return self._reader.get(wait)
        except Exception:
            self._delivery.finish(self._options.flush_timeout)
            raise

    def _take(self, portion: Portion) -> None:
        events = self._source.selection.slice.keep(portion.events)
        if self._delivered is not None:
            events = self._new_events(self._delivered, events, portion.token)
        self._hook("read")
        position = None
        if portion.token is not None and self._delivered is None:
            position = Position(portion.token, token_time(portion.token), fingerprint=self._source.fingerprint)
        self._delivery.deliver(events, position)
        self._merge.delivered(portion)
        self._backoff.progressed()
        self._moved = True

    def _new_events(self, delivered: DeliveredFilter, events: list[bytes], token: bytes | None) -> list[bytes]:
        """Drop what was delivered before; until the stream is past it, the position stays where it is."""
        kept = delivered.keep(events, token)
        if delivered.passed:
            _log.info("the stream is past what was delivered before", dropped=delivered.dropped)
            self._delivered, self._start_at_time = None, False
        return kept

    # --- the snapshot beside the stream

    def _take_rows(self, backfill: Backfill) -> None:
        for rows in self._merge.next_rows():
            self._deliver_rows(rows)
        if backfill.finished and not self._rows_unsafe:
            self._finish_snapshot()

    def _deliver_rows(self, rows: Rows) -> None:
        # A key read back may have lost the type of its numbers, and with it its slice: a delete is good in every slice.
        whole = isinstance(rows.piece, KeyCheck)
        events = rows.events if whole else self._source.selection.slice.keep(rows.events)
        self._rows_unsafe += 1
        starts = range(0, len(events), EVENTS_PER_PORTION) or range(1)
        for begin in starts:
            is_last = begin + EVENTS_PER_PORTION >= len(events)
            self._hook("rows")
            self._delivery.deliver(
                events[begin : begin + EVENTS_PER_PORTION],
                None,
                (lambda: self._rows_are_safe(rows)) if is_last else None,
            )

    def _rows_are_safe(self, rows: Rows) -> None:
        self._rows_unsafe -= 1
        if isinstance(rows.piece, KeyCheck):
            self._deletes_found += len(rows.events)
        else:
            self._hook("before-chunk-done")
            self._recovery.progress.chunks_done([(rows.piece, len(rows.events))])
            self._hook("after-chunk-done")
        self._show_snapshot()

    def _finish_snapshot(self) -> None:
        self._recovery.finish(self._deletes_found)
        self._backfill = None
        self._merge.end_of_rows()
        self.status.recovering(False)
        self._hook("snapshot-finished")
        _log.info("the snapshot is finished", **self._recovery.progress.summary())

    def _show_snapshot(self) -> None:
        done = self._recovery.progress.summary()
        seconds = time.monotonic() - self._backfill_began
        self.status.snapshot = SnapshotStatus(
            done["chunks"], done["chunks_done"], done["estimated"], done["read"], seconds
        )

    # --- errors

    def _answer_safely(self, error: Exception) -> None:
        """Answer an error, and also the one that answering it may meet, such as a store that is away."""
        try:
            self._answer(error)
        except Exception as other:
            if other is error or classify(other).outcome not in (Outcome.RETRY, Outcome.RESUME):
                raise
            self._answer(other)

    def _answer(self, error: Exception) -> None:
        """Do what the classifier says."""
        if isinstance(error, _Stopped):
            return
        if isinstance(error, StreamEnded):
            if self._moved:
                return  # the position is behind the invalidate event now, which startAfter crosses
            error = StreamInvalidated(f"{self._options.name} ended, and its stream cannot be opened behind its end")
        verdict = classify(error)
        self._metrics.error(verdict.code)
        if verdict.outcome is Outcome.STOP:
            raise error
        if verdict.outcome is Outcome.RECOVER:
            self._note_lost_history(error, verdict)
            return
        self._start_at_time = self._start_at_time or verdict.remedy is Remedy.START_AT_TIME
        self._rest(self._pause_after(error, verdict))

    def _pause_after(self, error: Exception, verdict: Verdict) -> float:
        """Give how long to wait before the next attempt, or raise the error when the budget is spent."""
        pause = self._backoff.failed() if verdict.outcome in (Outcome.RETRY, Outcome.RESUME) else None
        if pause is None:
            raise error
        _log.warning(
            "trying again", code=verdict.code, why=verdict.why, error=str(error)[:300], seconds=round(pause, 2)
        )
        return pause

    def _note_lost_history(self, error: Exception, verdict: Verdict) -> None:
        """Put the token aside and the gap into the ledger; the next attempt begins with the recovery."""
        position = self._leader.position
        lost = None
        if position is not None and position.token is not None:
            self._quarantine.add(position.token)
            lost = ResumeToken.parse(position.token).hex
        self._hook("before-ledger")
        gap = self._recovery.ledger.record(verdict.code, position, lost_token=lost)
        self._hook("after-ledger")
        self._metrics.gap()
        if not self._options.recover:
            raise GapOpen(f"history was lost; gap {gap.number} of {self._options.name} is open") from error

    def _recover(self, reason: str) -> None:
        if not self._options.recover:
            raise GapOpen(f"a gap of {self._options.name} is open")
        self.status.recovering(True)
        self._recovery.begin_recovery(self._leader, reason)
        self._hook("recovery-begun")

    # --- time

    def _pause(self, seconds: float) -> None:
        """Wait while the sink is full; the reading thread waits too, once its buffer is."""
        self._show()
        self._stopping.wait(min(seconds, _LONGEST_WAIT))
        if self._stopping.is_set():
            raise _Stopped

    def _rest(self, seconds: float) -> None:
        """Wait between attempts, keeping the lease."""
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            self._stopping.wait(min(left, 1.0))
            try:
                self._leader.keep()
            except Exception as error:
                if classify(error).outcome is not Outcome.RETRY:
                    raise

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _Stopped

    def _is_done(self) -> bool:
        """Whether a run that is to end by itself has nothing left to do."""
        return self._options.stop_when_idle and self._backfill is None and self._merge.idle

    def _show(self, *, now: bool = False) -> None:
        if not now and time.monotonic() < self._next_show:
            return
        self._next_show = time.monotonic() + _SECONDS_BETWEEN_SHOWS
        saved = self._delivery.saved
        if saved is not None:
            self.status.moved(saved, self._delivery.counts.events)
        self._metrics.buffer(self._reader.held, self._options.buffer_bytes)
        self.status.buffered = self._reader.held
        self._metrics.state(self.status.liveness().state)


class _Stopped(Exception):
    """The producer was told to stop while it waited."""
