"""`Producer`: owns a stream, forwards it into a sink, and can be killed at any moment.

It becomes the one process that may move the position, makes attempt after attempt to follow the stream, and answers
every error as the classifier says. What one attempt does is the business of `Attempt`; how records are acknowledged and
positions move, that of `Delivery`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bson.timestamp import Timestamp

from tailrace.capture.classifier import Remedy, Verdict, classify
from tailrace.capture.formats import Format
from tailrace.capture.positions import PositionStore
from tailrace.capture.positions.leader import Leader
from tailrace.capture.producer.attempt import Attempt, Journal, Parts
from tailrace.capture.producer.control import Controls, FirstStep, ProducerOptions, Step, Stopped
from tailrace.capture.producer.delivery import DeadLetter, Hook, no_hook
from tailrace.capture.producer.status import ProducerStatus
from tailrace.capture.recovery.inventory import KeyInventory
from tailrace.capture.recovery.machine import pause_before
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.sinks import Sink
from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.reader import Quarantine, StreamEnded
from tailrace.capture.source.source import EventSource, captured_collections
from tailrace.errors import ControlRefused, GapOpen, LeaseHeld, Outcome, SinkUnavailable, StreamInvalidated
from tailrace.logs import get_logger
from tailrace.masking import masked
from tailrace.monitor import State, StreamMetrics
from tailrace.retry import Backoff

_log = get_logger("tailrace.capture")
_LONGEST_SLEEP = 1.0
"""Seconds between two checks of the lease while nothing is read."""


class Producer:
    """One stream into one sink. `run` returns after `stop` was called, or raises what the classifier stops at.

    All methods but `run` may be called from any thread; `stop` from a signal handler too.
    """

    def __init__(
        self,
        source: EventSource,
        store: PositionStore,
        format: Format,
        make_sink: Callable[[], Sink],
        dead_letter: DeadLetter,
        inventory: KeyInventory,
        options: ProducerOptions,
        *,
        hook: Hook = no_hook,
    ) -> None:
        self.status = ProducerStatus(options.name)
        self._controls = Controls(options.first_step)
        self._options = options
        self._parts = Parts(
            source,
            store,
            format,
            make_sink,
            dead_letter,
            inventory,
            options,
            hook,
            self._controls,
            self.status,
            StreamMetrics(options.name),
            Quarantine(),
            Backoff(options.backoff),
            Journal(options.name),
        )
        self._leader: Leader
        self._attempt: Attempt | None = None
        self._end_time: Timestamp | None = None

    @property
    def backfilling(self) -> bool:
        """Whether a snapshot is under way beside the stream."""
        return self._attempt is not None and self._attempt.snapshot is not None

    @property
    def delivered(self) -> int:
        """Events that the sink has acknowledged, ever, under this name."""
        delivery = self._attempt.delivery if self._attempt else None
        return delivery.counts.events if delivery else 0

    @property
    def is_paused(self) -> bool:
        """Whether somebody has paused it."""
        return self._controls.paused

    def stop(self) -> None:
        """Ask `run` to end."""
        self._controls.stop()

    def pause(self) -> None:
        """Stop reading after what was read is delivered; the lease and the position are kept."""
        self._controls.pause()

    def resume(self) -> None:
        """Go on reading at the position."""
        self._controls.resume()

    def keep_lease(self) -> None:
        """Renew the lease when that is due; for a sink that waits in the producer's thread."""
        self._keep_lease()

    def take_snapshot(self, namespaces: Sequence[str] = ()) -> list[str]:
        """Read collections of the stream once more, beside it; gives which ones."""
        self._refuse_two_snapshots()
        wanted = Namespaces.parse(tuple(namespaces))
        captured = captured_collections(self._parts.source.documents(), self._parts.source.selection)
        chosen = [name for name in captured if wanted.contains(*name.split(".", 1))]
        if not chosen:
            raise ControlRefused("no collection of the stream is among these namespaces", status=400)
        self._controls.ask(Step(FirstStep.SNAPSHOT, tuple(chosen) if namespaces else ()))
        return chosen

    def recover(self) -> None:
        """Recover as if history had been lost: the gap goes into the ledger, then a snapshot and the deletes."""
        self._refuse_two_snapshots()
        self._controls.ask(Step(FirstStep.RECOVER))

    def run(self) -> None:
        """Wait for the lease, then follow the stream until `stop`."""
        leader = self._elect()
        if leader is None:
            return
        with leader:
            self._leader = leader
            while not self._controls.stopping:
                try:
                    self._wait_while_paused()
                    self._follow()
                except Exception as error:
                    self._answer_safely(error)

    def _elect(self) -> Leader | None:
        """Take the lease, retrying while the store is unavailable; None when asked to stop."""
        options = self._options
        while not self._controls.stopping:
            try:
                leader = Leader.elect(
                    self._parts.store,
                    options.name,
                    seconds=options.lease_seconds,
                    timeout=options.lease_timeout,
                    sleep=self._wait_for_lease,
                )
                self._parts.journal.elected(leader.lease)
                self.status.elected()
                return leader
            except LeaseHeld:
                raise
            except Stopped:
                break
            except Exception as error:
                self._sleep(self._pause_after(error, classify(error)))
        return None

    def _follow(self) -> None:
        start_at_time = self._attempt is not None and self._attempt.start_at_time
        if self._options.stop_when_idle and self._end_time is None:
            self._end_time = self._parts.source.operation_time()
        self._attempt = Attempt(self._parts, self._leader, start_at_time=start_at_time, end_time=self._end_time)
        if self._attempt.follow():
            self._controls.stop()

    def _refuse_two_snapshots(self) -> None:
        if self.backfilling:
            hint = "Ask again when it is finished; GET /state shows how far it is."
            raise ControlRefused("a snapshot is under way", status=409, hint=hint)

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
        attempt = self._attempt
        if isinstance(error, Stopped):
            return
        if isinstance(error, StreamEnded):
            if attempt and attempt.moved:
                return  # the position is behind the invalidate event now, which startAfter crosses
            error = StreamInvalidated(f"{self._options.name} ended, and its stream cannot be opened behind its end")
        verdict = classify(error)
        self._note_error(verdict)
        if isinstance(error, SinkUnavailable):
            self.status.delivery_waits(masked(error.message))
        if verdict.outcome is Outcome.STOP:
            raise error
        if verdict.outcome is Outcome.RECOVER:
            self._note_lost_history(error, verdict)
            return
        if attempt and verdict.remedy is Remedy.START_AT_TIME:
            attempt.start_at_time = True
        self._back_off(self._pause_after(error, verdict))

    def _note_error(self, verdict: Verdict) -> None:
        self._parts.metrics.error(verdict.code)
        self.status.error(verdict.code)

    def _pause_after(self, error: Exception, verdict: Verdict) -> float:
        """Give how long to wait before the next attempt, or raise the error when the budget is spent."""
        pause = self._parts.backoff.failed() if verdict.outcome in (Outcome.RETRY, Outcome.RESUME) else None
        if pause is None:
            raise error
        _log.warning("retrying", code=verdict.code, error=str(error)[:300], seconds=round(pause, 2))
        return pause

    def _note_lost_history(self, error: Exception, verdict: Verdict) -> None:
        """Quarantine the token and write the gap to the ledger; the next attempt begins with the recovery.

        A gap that grew while it was being closed is tried again later and later, because the oplog may be too small.
        """
        parts, position = self._parts, self._leader.position
        if position is not None and position.token is not None:
            parts.quarantine.add(position.token)
        parts.hook("before-ledger")
        recovery = Recovery(parts.source, parts.store.cells, self._options.name, parts.inventory)
        gap = recovery.lost(position, verdict.code)
        parts.hook("after-ledger")
        if gap is None:
            raise error
        parts.metrics.gap()
        if not self._options.recover:
            raise GapOpen(f"history was lost; gap {gap.number} of {self._options.name} is open") from error
        pause = pause_before(gap.turns, self._options.backoff)
        self.status.lost(gap.number, gap.turns, pause)
        self._back_off(pause)

    # --- time

    def _wait_while_paused(self) -> None:
        """Keep the lease and show that nothing is read, for as long as the pause lasts."""
        if not self._controls.paused:
            return
        _log.info("paused", stream=self._options.name)
        self.status.paused(True)
        self._parts.metrics.state(State.PAUSED)
        while self._controls.paused and not self._controls.stopping:
            self._sleep(_LONGEST_SLEEP / 4)
            self._keep_lease()
        self.status.paused(False)

    def _back_off(self, seconds: float) -> None:
        """Wait between attempts, keeping the lease."""
        until = time.monotonic() + seconds
        while not self._controls.stopping and (left := until - time.monotonic()) > 0:
            self._sleep(min(left, _LONGEST_SLEEP))
            self._keep_lease()

    def _keep_lease(self) -> None:
        """Renew the lease; a store that is away is asked again, and the lease may end meanwhile."""
        try:
            self._leader.keep()
        except Exception as error:
            if classify(error).outcome is not Outcome.RETRY:
                raise

    def _wait_for_lease(self, seconds: float) -> None:
        self._parts.journal.waits_for_lease()
        self.status.waits_for_lease()
        self._controls.wait(seconds)

    def _sleep(self, seconds: float) -> None:
        """Wait until the time is over or the end is asked for."""
        self.status.beat()
        try:
            self._controls.wait(seconds)
        except Stopped:
            return
