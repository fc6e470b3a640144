"""The rows of a snapshot on their way into the sink, beside the stream, and what is noted when it has them."""

from __future__ import annotations

import time

from tailrace.capture.producer.control import ProducerOptions
from tailrace.capture.producer.delivery import Delivery, Hook
from tailrace.capture.producer.merging import Merge
from tailrace.capture.producer.status import ProducerStatus, SnapshotStatus
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.snapshot import Backfill, Chunk, KeyCheck, Rows
from tailrace.capture.source.source import EVENTS_PER_BATCH, EventSource
from tailrace.logs import get_logger

_log = get_logger("tailrace.capture")


class SnapshotDelivery:
    """The snapshot that is under way in one attempt; the next attempt goes on at the chunks that are left."""

    def __init__(
        self,
        source: EventSource,
        recovery: Recovery,
        delivery: Delivery,
        options: ProducerOptions,
        status: ProducerStatus,
        hook: Hook,
    ) -> None:
        self._slice = source.selection.slice
        self._recovery = recovery
        self._delivery = delivery
        self._status = status
        self._hook = hook
        self._began = time.monotonic()
        self._unacknowledged = 0
        self._deletes = 0
        self.backfill = Backfill(
            source.documents(),
            recovery.pieces(options.chunk_bytes),
            workers=options.snapshot_workers,
            documents_per_second=options.snapshot_documents_per_second,
            backoff=options.backoff,
            policy=options.policy,
        )

    def take_rows(self, merge: Merge) -> bool:
        """Deliver the rows that come next; gives whether the whole snapshot is acknowledged in the sink."""
        for rows in merge.next_rows():
            self._deliver(rows)
        if self._unacknowledged or not self.backfill.finished:
            return False
        self._finish()
        merge.end_of_rows()
        return True

    def _deliver(self, rows: Rows) -> None:
        # A key read back may have lost the type of its numbers, and with it its slice: a delete is good in every slice.
        events = self._slice.keep(rows.events) if isinstance(rows.piece, Chunk) else rows.events
        self._unacknowledged += 1
        starts = range(0, len(events), EVENTS_PER_BATCH) or range(1)
        for begin in starts:
            is_last = begin + EVENTS_PER_BATCH >= len(events)
            self._hook("rows")
            self._delivery.deliver(
                events[begin : begin + EVENTS_PER_BATCH], None, (lambda: self._acknowledged(rows)) if is_last else None
            )

    def _acknowledged(self, rows: Rows) -> None:
        self._unacknowledged -= 1
        if isinstance(rows.piece, KeyCheck):
            self._deletes += len(rows.events)
        elif isinstance(rows.piece, Chunk):
            self._hook("before-chunk-done")
            self._recovery.progress.chunks_done([(rows.piece, len(rows.events))])
            self._hook("after-chunk-done")
        self._show()

    def _finish(self) -> None:
        self._recovery.finish(self._delivery.committed, self._deletes)
        self._status.recovering(False)
        self._show()
        self._hook("snapshot-finished")
        _log.info("snapshot_finished", **self._recovery.progress.summary())

    def _show(self) -> None:
        progress = self._recovery.progress
        done, state = progress.summary(), progress.state
        self._status.snapshot = SnapshotStatus(
            done["chunks"],
            done["chunks_done"],
            done["estimated"],
            done["read"],
            time.monotonic() - self._began,
            reason=state.reason if state else "",
            gap=state.gap if state else None,
            finished=bool(state and state.finished),
        )
