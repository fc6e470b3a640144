"""Bugs planted into production's own classes, one at a time: the simulation has to find each of them.

Each entry names what is wrong, and gives the attributes to put another value in. A bug that nothing finds means that
the models are too kind, or that a promise is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bson.timestamp import Timestamp

import tailrace.capture.producer.merging as merging_module
from tailrace.capture.positions.leader import Leader
from tailrace.capture.positions.observed import ObservedCells
from tailrace.capture.positions.position import Position
from tailrace.capture.positions.store import PositionStore
from tailrace.capture.producer.attempt import Attempt
from tailrace.capture.producer.delivery import Delivery
from tailrace.capture.producer.merging import Merge
from tailrace.capture.producer.snapshot_delivery import SnapshotDelivery
from tailrace.capture.recovery.recovery import Recovery
from tailrace.capture.snapshot.backfill import Backfill, _Failed
from tailrace.capture.snapshot.progress import SnapshotProgress
from tailrace.capture.source.reader import Quarantine
from tailrace.capture.source.source import Start
from tailrace.cluster.merge import Merge as ShardMerge
from tailrace.driver.options import as_document
from tailrace.driver.resume import ResumableStream
from tailrace.errors import Backpressure
from tailrace.token import ResumeToken

Bug = dict[tuple[Any, str], Any]
PLANTED: dict[str, Callable[[], Bug]] = {}


def planted(make: Callable[[], Bug]) -> Callable[[], Bug]:
    PLANTED[make.__name__] = make
    return make


# --- delivery and positions


@planted
def position_saved_before_acknowledgement() -> Bug:
    advance = Delivery._advance
    return {(Delivery, "_advance"): lambda self, acknowledged: advance(self, math.inf)}


@planted
def end_of_an_attempt_does_not_wait_for_acknowledgements() -> Bug:
    def finish(self: Any, timeout: float) -> None:
        self._check_lease()
        if not self.transactional:
            self._advance(math.inf)
        self.commit(now=True)

    return {(Delivery, "finish"): finish}


@planted
def records_are_forgotten_when_the_sink_is_full() -> Bug:
    def add(self: Any, records: Any) -> int:
        self._check_lease()
        try:
            return int(self._sink.add(records))
        except Backpressure:
            return int(self._sink.add([]))

    return {(Delivery, "_add"): add}


@planted
def token_of_the_whole_batch_before_its_end() -> Bug:
    cut = merging_module.cut

    def wrong(batch: Any, at: Any) -> Any:
        sooner, later = cut(batch, at)
        return (sooner and replace(sooner, token=batch.token)), later

    return {(merging_module, "cut"): wrong}


@planted
def token_of_the_batch_that_is_still_to_come() -> Bug:
    def behind(token: bytes, *, fingerprint: str) -> Position:
        time = ResumeToken.parse(token).cluster_time
        ahead = Timestamp(time.time, time.inc + 2)
        return Position(ResumeToken.high_water_mark(ahead).to_bson(), ahead, fingerprint=fingerprint)

    return {(Position, "behind"): staticmethod(behind)}


@planted
def begins_now_after_an_error() -> Bug:
    start = Attempt._start

    def wrong(self: Any, delivery: Any) -> Start:
        found = start(self, delivery)
        return Start() if self._parts.backoff.failures else found

    return {(Attempt, "_start"): wrong}


# --- the driver


@planted
def resume_without_a_token() -> Bug:
    return {(ResumableStream, "_resume_position"): lambda self: {}}


@planted
def post_batch_token_ahead_of_events() -> Bug:
    def lose(self: Any) -> None:
        ahead = self._post_batch_token
        lost(self)
        self._token = ahead or self._token

    def accept(self: Any, reply: Any) -> None:
        accepted(self, reply)
        self._events = self._events[:-1]  # not handed out, yet the token stands behind it

    lost, accepted = ResumableStream._lose_cursor, ResumableStream._accept
    return {(ResumableStream, "_lose_cursor"): lose, (ResumableStream, "_accept"): accept}


@planted
def resume_at_the_token_before() -> Bug:
    def position(self: Any) -> dict[str, Any]:
        token = getattr(self, "_older", None) or self._current_token()
        return {"resumeAfter": as_document(token)}

    def accept(self: Any, reply: Any) -> None:
        self._older = self._current_token()
        accepted(self, reply)

    accepted = ResumableStream._accept
    return {(ResumableStream, "_resume_position"): position, (ResumableStream, "_accept"): accept}


@planted
def shards_do_not_wait_for_each_other() -> Bug:
    def limit(self: Any) -> Any:
        return max((shard.high_water_mark for shard in self._shards.values()), default=self._position)

    return {(ShardMerge, "_limit"): limit}


# --- leases


@planted
def holder_does_not_look_at_its_lease() -> Bug:
    return {(Leader, "check"): lambda self, *, in_flight: None}


@planted
def lease_is_not_renewed() -> Bug:
    return {
        (Leader, "keep"): lambda self: None,
        (Leader, "check"): lambda self, *, in_flight: None,
        (Leader, "_keep_while_waiting"): lambda self: None,
    }


@planted
def term_counts_from_the_answer_and_is_twice_as_long() -> Bug:
    return {(Leader, "seconds_left"): lambda self: self.lease.asked_at + 2 * self.lease.seconds - self._clock()}


@planted
def lease_is_taken_from_a_living_holder() -> Bug:
    return {(PositionStore, "_seconds_left"): lambda self, name, cell: 0.0}


@planted
def store_does_not_ask_who_writes() -> Bug:
    return {
        (PositionStore, "_check_writer"): lambda self, cell, lease: None,
        (Leader, "check"): lambda self, *, in_flight: None,
    }


@planted
def watched_lease_is_as_old_as_its_name() -> Bug:
    def read(self: Any, name: str, read: Callable[[str], bytes | None]) -> bytes | None:
        known = self._watches.get(name)
        cell = honest(self, name, read)
        if known is not None:
            self._watches[name] = replace(self._watches[name], since=known.since)
        return cell

    honest = ObservedCells.read
    return {(ObservedCells, "read"): read}


# --- lost history


@planted
def gap_is_passed_over() -> Bug:
    def begin(self: Any, leader: Any, reason: str) -> Any:
        self._move_to_now(leader, reason)
        return self.ledger.close(self.ledger.open_gap(), records=0, deletes=0)

    return {(Recovery, "_begin_recovery"): begin}


@planted
def gap_is_not_in_the_ledger() -> Bug:
    def begin(self: Any, leader: Any, reason: str) -> Any:
        gap = self.ledger.open_gap()
        self.progress.begin("recovery")
        self._move_to_now(leader, reason)
        self.ledger._cell.update(lambda _: {"gaps": []})
        return gap

    return {(Recovery, "_begin_recovery"): begin}


@planted
def deletes_of_the_gap_are_not_looked_for() -> Bug:
    return {(Recovery, "_key_checks"): lambda self, gap: iter(())}


@planted
def gap_is_closed_before_its_rows_are_acknowledged() -> Bug:
    def take_rows(self: Any, merge: Any) -> bool:
        for rows in merge.next_rows():
            self._deliver(rows)
        if not self.backfill.finished:
            return False
        self._finish()
        merge.end_of_rows()
        return True

    return {(SnapshotDelivery, "take_rows"): take_rows}


@planted
def quarantine_forgotten() -> Bug:
    """The dead token is sent again: the ledger is not read, and the position is left where it was."""

    def save(self: Any, position: Any, *, reason: str | None = None) -> None:
        if reason is None or not reason.startswith("gap"):
            honest(self, position, reason=reason)

    honest = Leader.save
    return {
        (Quarantine, "check"): lambda self, token: None,
        (Recovery, "lost_tokens"): lambda self: [],
        (Leader, "save"): save,
    }


@planted
def position_moves_before_the_snapshot_is_noted() -> Bug:
    def begin(self: Any, leader: Any) -> None:
        self._move_to_now(leader, "first run")
        self._source._world.scheduler.wait(None, 0.3)
        self.progress.begin("first run")

    return {(Recovery, "_begin_first"): begin}


# --- snapshots


@planted
def chunk_is_done_when_it_is_handed_over() -> Bug:
    def deliver(self: Any, rows: Any) -> None:
        handed(self, rows)
        if type(rows.piece).__name__ == "Chunk":
            self._recovery.progress.chunks_done([(rows.piece, len(rows.events))])

    handed = SnapshotDelivery._deliver
    return {(SnapshotDelivery, "_deliver"): deliver}


@planted
def last_chunk_is_left_out() -> Bug:
    left = SnapshotProgress.chunks_left
    return {(SnapshotProgress, "chunks_left"): lambda self: left(self)[:-1]}


@planted
def stream_does_not_wait_for_rows() -> Bug:
    def next_batch(self: Any, read: Callable[[], Any]) -> Any:
        return read()

    return {(Merge, "next_batch"): next_batch}


@planted
def rows_do_not_wait_for_the_stream() -> Bug:
    return {(Merge, "has_passed"): lambda self, at: True}


@planted
def rows_come_in_the_middle_of_a_transaction() -> Bug:
    def has_passed(self: Any, at: Any) -> bool:
        if self._buffered is not None:
            return bool(merging_module.event_time(self._buffered.events[0]) > at)
        return self._time is not None and bool(self._time >= at)

    def cut(batch: Any, at: Any) -> Any:
        return batch, None

    return {(Merge, "has_passed"): has_passed, (merging_module, "cut"): cut}


@planted
def piece_that_failed_is_not_read_again() -> Bug:
    def take(self: Any, result: Any) -> None:
        if isinstance(result, _Failed):
            del self._under_way[id(result.piece)]
        else:
            taken(self, result)

    taken = Backfill._take
    return {(Backfill, "_take"): take}
