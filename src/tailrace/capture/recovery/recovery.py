"""What is done before a stream may begin without a position, or go on without its history: the actions of `machine`.

In every case the order is such that a crash between any two steps leaves something from which the next process goes on:
the gap is in the ledger before the snapshot is noted, the snapshot is noted before the position moves to the
new beginning, and the position is the new beginning before the first chunk is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tailrace.capture.formats import recovered_rename
from tailrace.capture.positions import Cells, Counts, Position
from tailrace.capture.positions.leader import Leader
from tailrace.capture.recovery.gaps import Gap, GapLedger, GapState
from tailrace.capture.recovery.inventory import KeyInventory, in_background
from tailrace.capture.recovery.local_inventory import NO_TIMES
from tailrace.capture.recovery.machine import Action, RecoveryEvent, RecoveryState, answer, state_of
from tailrace.capture.snapshot import Chunk, FoundEvents, KeyCheck, SnapshotProgress, plan_collection
from tailrace.capture.snapshot.backfill import Piece
from tailrace.capture.snapshot.chunk import CHUNK_BYTES, estimated_documents
from tailrace.capture.source.source import EventSource, captured_collections, captured_uuids
from tailrace.errors import InventoryMissing, SettingsError
from tailrace.event import ChangeEvent
from tailrace.fold import End, Ends
from tailrace.logs import get_logger
from tailrace.server_codes import UNAUTHORIZED
from tailrace.token import ResumeToken

_KEYS_PER_CHECK = 1_000
_log = get_logger("tailrace.capture")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a recovery would do, for `tailrace recover --dry-run`."""

    gap: Gap | None
    position: Position | None
    oplog_begins: Timestamp | None
    """None when the user may not read the oplog, or a mongos hides it."""
    now: Timestamp
    documents: dict[str, int]
    """About how many documents would be read again, by collection."""
    inventory: str
    """Where the keys that were captured before would come from."""
    refusal: InventoryMissing | None
    """Why a recovery would be refused, if it would be."""

    @property
    def is_lost(self) -> bool:
        """Whether history is known to be lost: a gap is open, or the oplog begins after the position."""
        if self.gap is not None or self.position is None or self.oplog_begins is None:
            return self.gap is not None
        return self.position.cluster_time < self.oplog_begins

    def to_json(self) -> dict[str, Any]:
        """Give it as plain values."""
        return {
            "gap": self.gap.to_json() if self.gap else None,
            "position": self.position.to_json() if self.position else None,
            "oplog_begins": {"t": self.oplog_begins.time, "i": self.oplog_begins.inc} if self.oplog_begins else None,
            "now": {"t": self.now.time, "i": self.now.inc},
            "is_lost": self.is_lost,
            "documents": self.documents,
            "inventory": self.inventory,
            "refused": f"{self.refusal}" if self.refusal else None,
        }


class Recovery:
    """Begins and ends snapshots of one stream: the first one, and those that close a gap."""

    def __init__(self, source: EventSource, cells: Cells, stream: str, inventory: KeyInventory) -> None:
        self._source = source
        self.ledger = GapLedger(cells, stream)
        self.progress = SnapshotProgress(cells, stream)
        self._inventory = inventory

    def lost_tokens(self) -> list[bytes]:
        """Give the tokens of all gaps, which are never sent again."""
        lost = (token for gap in self.ledger.all() for token in (gap.lost_token, *gap.lost_again) if token)
        return [ResumeToken.from_hex(token).to_bson() for token in lost]

    def state(self, position: Position | None) -> RecoveryState:
        """Read off what is stored where the stream stands."""
        gap, snapshot = self.ledger.open_gap(), self.progress.state
        return state_of(
            has_position=position is not None,
            gap_is_open=gap is not None,
            gap_recovers=gap is not None and gap.state is GapState.RECOVERING,
            is_unfinished=self.progress.unfinished is not None,
            closes_gap=gap is not None and snapshot is not None and snapshot.gap == gap.number,
        )

    def begin(
        self, event: RecoveryEvent, leader: Leader, *, asked_by: str = "", only: tuple[str, ...] = ()
    ) -> RecoveryState:
        """Do what has to be done before the stream is opened; gives where it stands then."""
        state = self.state(leader.position)
        action, after = answer(state, event)
        gap = self.ledger.open_gap()
        if action is Action.TAKE_FIRST:
            self._begin_first(leader)
        elif action is Action.TAKE_SNAPSHOT:
            self.progress.begin(asked_by, only=only)
        elif action is Action.RECOVER:
            self._begin_recovery(leader, asked_by if gap is None else gap.reason)
        elif action is Action.ACCEPT:
            self._begin_now(leader, asked_by)
        elif action is Action.CLOSE and gap is not None:
            self._close(gap)
            if event is not RecoveryEvent.BEGIN:
                return self.begin(event, leader, asked_by=asked_by, only=only)
        return after

    def lost(self, position: Position | None, reason: str) -> Gap | None:
        """Write down that the history after a position is lost: a new gap, or one that has grown."""
        action, _ = answer(self.state(position), RecoveryEvent.LOST)
        token = ResumeToken.parse(position.token).hex if position and position.token else None
        gap = self.ledger.open_gap()
        if action is Action.GROW_GAP and gap is not None:
            gap = self.ledger.grow(gap, reason, token)
        elif action is Action.OPEN_GAP:
            gap = self.ledger.record(reason, position, lost_token=token)
        if gap is not None:
            what = "history_lost" if gap.turns == 1 else "history_lost_again"
            _log.warning(what, gap=gap.number, turn=gap.turns, reason=reason, last_good=_shown(gap.last_good))
        return gap

    def _begin_first(self, leader: Leader) -> None:
        """Prepare a first run: a snapshot is needed, and the stream begins now, before its first chunk."""
        self._source.documents()  # refused before anything is noted
        self.progress.begin("first run")
        self._move_to_now(leader, "first run: a snapshot, and the stream from here on")

    def _begin_now(self, leader: Leader, asked_by: str) -> None:
        """Begin the stream now, because a person asked for it by name; what was before goes into the ledger.

        A gap that is open stays so until the position has moved: a crash before ends in its recovery.
        """
        gap = self.ledger.open_gap()
        if gap is None:
            _, now = self._source.now()
            gap = self.ledger.record(asked_by, leader.position, first_known=now, state=GapState.ACCEPTED)
            self._give_snapshot_up()
            self._move_to_now(leader, f"{asked_by}; gap {gap.number} is in the ledger")
            return
        gap = self.ledger.change(gap, state=GapState.OPEN)
        began = self._move_to_now(leader, f"{asked_by}; gap {gap.number} is in the ledger")
        now = began.cluster_time
        self.ledger.change(gap, state=GapState.ACCEPTED, first_known=now, closed_at=datetime.now(UTC))
        self._give_snapshot_up()

    def _give_snapshot_up(self) -> None:
        """End a snapshot whose rows would stand before events that are never read."""
        if self.progress.unfinished is not None:
            self.progress.finish()

    def _begin_recovery(self, leader: Leader, reason: str) -> Gap:
        """Write the gap down, note that a snapshot is needed, and begin the stream anew."""
        client = self._source.documents()
        position = leader.position
        lost = ResumeToken.parse(position.token).hex if position and position.token else None
        gap = self.ledger.record(reason, position, lost_token=lost)
        self.progress.begin("recovery", gap.number)
        before = captured_uuids(client, self._source.selection)
        began = self._move_to_now(leader, f"gap {gap.number}: {reason}")
        names = tuple(captured_collections(client, self._source.selection))
        after = captured_uuids(client, self._source.selection)
        gap = self.ledger.change(
            gap,
            first_known=began.cluster_time,
            state=GapState.RECOVERING,
            namespaces=names,
            collections=tuple((uuid.hex(), name) for uuid, name in after.items() if before.get(uuid) == name),
        )
        _log.warning(
            "gap_recorded",
            gap=gap.number,
            turn=gap.turns,
            reason=reason,
            last_good=_shown(gap.last_good),
            first_known=_shown(gap.first_known),
        )
        return gap

    def pieces(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Piece | None]:
        """Give what is left to read of the snapshot that is under way: chunks, then keys to look for.

        None means that the next piece is not known yet: reading the inventory takes its time.
        """
        state = self.progress.unfinished
        if state is None:
            return
        if not state.planned:
            yield from self._plan(chunk_bytes, state.only)
        yield from self.progress.chunks_left()
        if state.gap is not None and not state.deletes_checked:
            yield from in_background(self._key_checks(self.ledger.open_gap()))

    def renamed(self, event: ChangeEvent) -> bool:
        """Note what a rename leaves to be read, before the position moves behind it.

        Documents under a name that is not captured were never delivered; those of a collection whose snapshot is under
        way are read under its new name from here on. Gives whether the reading has to begin anew.
        """
        old, new = event.namespace, event.new_namespace
        chosen = self._source.selection.namespaces
        to = new if new is not None and chosen.contains_name(new) else None
        if not chosen.contains_name(old):
            return to is not None and self._read_also(old, to)
        if self.progress.is_left(old):
            self.progress.rename(old, to)
            return True
        state = self.progress.unfinished
        # Keys are looked for under the names that their collections had when the inventory was read.
        return state is not None and state.gap is not None and not state.deletes_checked

    def _read_also(self, old: str, to: str) -> bool:
        try:
            client = self._source.documents()
        except SettingsError as error:
            _log.warning("renamed_documents_not_read", renamed_from=old, namespace=to, error=error.message)
            return False
        self.progress.also(to, plan_collection(client, to), f"rename of {old}")
        _log.info("reading_renamed_documents", renamed_from=old, namespace=to)
        return True

    def finish(self, position: Position | None, deletes: int) -> Gap | None:
        """Note that the sink has acknowledged every row: with a gap open, it equals the source again."""
        action, _ = answer(self.state(position), RecoveryEvent.DELIVERED)
        gap = self.ledger.open_gap()
        if action is Action.FINISH:
            self.progress.finish()
        elif action is Action.CLOSE and gap is not None:
            if self.progress.unfinished is not None:
                self.progress.deletes_checked(deletes)
                self.progress.finish()
            return self._close(gap)
        return None

    def forecast(self, position: Position | None) -> Forecast:
        """Say what a recovery would do, without doing anything."""
        client = self._source.documents()
        _, now = self._source.now()
        names = captured_collections(client, self._source.selection)
        return Forecast(
            gap=self.ledger.open_gap(),
            position=position,
            oplog_begins=_oplog_begins(client),
            now=now,
            documents={name: estimated_documents(client, name) for name in names},
            inventory=self._inventory.description,
            refusal=self._refusal(),
        )

    def _refusal(self) -> InventoryMissing | None:
        try:
            self._inventory.check()
        except InventoryMissing as error:
            return error
        return None

    def _close(self, gap: Gap) -> Gap:
        found = self.progress.state
        deletes = found.deletes if found else 0
        closed = self.ledger.close(gap, records=self.progress.summary()["read"], deletes=deletes)
        _log.info("gap_closed", gap=gap.number, turns=gap.turns, records=closed.records, deletes=deletes)
        return closed

    def _plan(self, chunk_bytes: int, only: tuple[str, ...]) -> Iterator[None]:
        """Plan all collections, which may take longer than a lease lasts; gives None meanwhile."""
        planned: list[tuple[str, list[Chunk], int]] = []
        for each in in_background(self._plans(chunk_bytes, only)):
            if each is None:
                yield None
            else:
                planned.append(each)
        self.progress.plan(
            {name: chunks for name, chunks, _ in planned}, {name: documents for name, _, documents in planned}
        )

    def _plans(self, chunk_bytes: int, only: tuple[str, ...]) -> Iterator[tuple[str, list[Chunk], int]]:
        client = self._source.documents()
        for name in captured_collections(client, self._source.selection):
            if not only or name in only:
                yield name, plan_collection(client, name, chunk_bytes), estimated_documents(client, name)

    def _key_checks(self, gap: Gap | None) -> Iterator[Piece]:
        """Give every key that was captured before, for workers to find which are gone; then the renames in the gap."""
        renames: list[End] = []

        def unseen(known: Ends) -> list[End]:
            if gap is not None and gap.first_known is not None:
                names = {bytes.fromhex(uuid): name for uuid, name in gap.collections}
                renames.extend(known.unseen_renames(names, gap.first_known))
            return renames

        lost = NO_TIMES if gap is None else gap.times
        for namespace, found in groupby(self._inventory.keys(unseen, lost), key=itemgetter(0)):
            keys = (key for _, key in found)
            while some := tuple(islice(keys, _KEYS_PER_CHECK)):
                yield KeyCheck(namespace, some, None if gap is None else gap.newest_lost)
        if renames:
            yield FoundEvents(tuple(map(_event_of, renames)))

    def _move_to_now(self, leader: Leader, reason: str) -> Position:
        before = leader.position
        token, _ = self._source.now()
        counts = before.counts if before else Counts()
        position = replace(Position.behind(token, fingerprint=self._source.fingerprint), counts=counts)
        leader.save(position, reason=reason)
        return position


def _event_of(rename: End) -> bytes:
    assert rename.to is not None
    token = ResumeToken.from_hex(rename.moment[1])
    return recovered_rename(rename.namespace, rename.to, token.to_bson(), token.cluster_time)


def _shown(time: Timestamp | None) -> str | None:
    return None if time is None else f"{time.time}:{time.inc}"


def _oplog_begins(client: MongoClient[Any]) -> Timestamp | None:
    """Give the time of the oplog's first entry: worth showing, but no role is asked for that alone."""
    try:
        first = client.local["oplog.rs"].find_one(sort=[("$natural", 1)])
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        return None
    return first["ts"] if first else None
