"""The rows of a snapshot on their way into the sink, beside the stream, and what is noted when they are safe."""

from __future__ import annotations

import time

import structlog

from tailrace.capture.producer.delivery import Delivery, Hook
from tailrace.capture.producer.merging import Merge
from tailrace.capture.producer.options import ProducerOptions
from tailrace.capture.producer.status import ProducerStatus, SnapshotStatus
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.snapshot import Backfill, KeyCheck, Rows
from tailrace.capture.source.reader import EVENTS_PER_PORTION
from tailrace.capture.source.source import EventSource

_log = structlog.get_logger("tailrace.capture")


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
        self._unsafe = 0
        self._deletes = 0
        self.backfill = Backfill(
            source.documents(),
            recovery.pieces(options.chunk_bytes),
            workers=options.snapshot_workers,
            documents_per_second=options.snapshot_documents_per_second,
            backoff=options.backoff,
        )

    def take_rows(self, merge: Merge) -> bool:
        """Deliver the rows that come next; gives whether the whole snapshot is safe in the sink."""
        for rows in merge.next_rows():
            self._deliver(rows)
        if self._unsafe or not self.backfill.finished:
            return False
        self._finish()
        merge.end_of_rows()
        return True

    def _deliver(self, rows: Rows) -> None:
        # A key read back may have lost the type of its numbers, and with it its slice: a delete is good in every slice.
        whole = isinstance(rows.piece, KeyCheck)
        events = rows.events if whole else self._slice.keep(rows.events)
        self._unsafe += 1
        starts = range(0, len(events), EVENTS_PER_PORTION) or range(1)
        for begin in starts:
            is_last = begin + EVENTS_PER_PORTION >= len(events)
            self._hook("rows")
            self._delivery.deliver(
                events[begin : begin + EVENTS_PER_PORTION],
                None,
                (lambda: self._are_safe(rows)) if is_last else None,
            )

    def _are_safe(self, rows: Rows) -> None:
        self._unsafe -= 1
        if isinstance(rows.piece, KeyCheck):
            self._deletes += len(rows.events)
        else:
            self._hook("before-chunk-done")
            self._recovery.progress.chunks_done([(rows.piece, len(rows.events))])
            self._hook("after-chunk-done")
        self._show()

    def _finish(self) -> None:
        self._recovery.finish(self._delivery.saved, self._deletes)
        self._status.recovering(False)
        self._show()
        self._hook("snapshot-finished")
        _log.info("the snapshot is finished", **self._recovery.progress.summary())

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
