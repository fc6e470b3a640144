"""The ledger of gaps: every stretch of history that a stream did not see, written down before anything else is done.

A gap is open until a recovery has made the sink equal to the source again. While one is open the stream does not
send the token that was lost (see quarantine), and `tailrace gaps` shows it. A gap is never deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from bson.timestamp import Timestamp

from tailrace.capture.positions.position import Position
from tailrace.capture.positions.side_cell import SideCell, stream_of
from tailrace.capture.positions.store import Cells, PositionStore
from tailrace.errors import GapUnknown, PositionInvalid
from tailrace.monitor import Consumer
from tailrace.raw.cluster_time import ClusterTime
from tailrace.token import ResumeToken

_TOKENS_KEPT = 100
_NOTES_KEPT = 20


class GapState(StrEnum):
    """What became of a gap."""

    OPEN = "open"
    """Nothing was done about it yet."""
    RECOVERING = "recovering"
    """A snapshot is on its way."""
    CLOSED = "closed"
    """The sink equals the source again; deletes made in the gap were found and delivered."""
    ACCEPTED = "accepted"
    """A person asked by name to start later; what lies in the gap was never delivered."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of history [last_good, first_known] that was not read."""

    number: int
    stream: str
    reason: str
    """The code of the error that showed it, or what a person asked for."""
    last_good: Timestamp | None
    """Everything up to here was delivered; None when nothing was known."""
    first_known: Timestamp | None
    """From here on events are read again; None until that is known."""
    lost_token: str | None
    """The `_data` of the token that is never sent again."""
    found_at: datetime
    state: GapState = GapState.OPEN
    closed_at: datetime | None = None
    namespaces: tuple[str, ...] = ()
    collections: tuple[tuple[str, str], ...] = ()
    """UUID and name, from `first_known` on, of collections whose name was the same before and after that moment."""
    records: int = 0
    """Documents that the recovery read again."""
    deletes: int = 0
    """Documents that were deleted in the gap, delivered as recovered deletes."""
    notes: tuple[str, ...] = field(default=())
    turns: int = 1
    """How often history was lost before the gap was closed: more than once when it grew meanwhile."""
    lost_again: tuple[str, ...] = ()
    """The tokens that were lost while it grew; they are never sent again either."""

    @property
    def is_open(self) -> bool:
        """Whether something has to be done about it."""
        return self.state in (GapState.OPEN, GapState.RECOVERING)

    @property
    def times(self) -> tuple[int, int]:
        """From the lost position on, up to where events are read again, as cluster times."""
        begin, end = (
            0 if time is None else ClusterTime.from_timestamp(time) for time in (self.last_good, self.first_known)
        )
        return begin, end

    @property
    def newest_lost(self) -> Timestamp | None:
        """The last cluster time whose events are missing: those of `first_known` itself are read."""
        return None if self.first_known is None else ClusterTime(self.times[1] - 1).timestamp

    def to_json(self) -> dict[str, Any]:
        """Give the form that is stored and shown."""
        return {
            "number": self.number,
            "stream": self.stream,
            "reason": self.reason,
            "last_good": _time_to_json(self.last_good),
            "first_known": _time_to_json(self.first_known),
            "lost_token": self.lost_token,
            "found_at": self.found_at.isoformat(),
            "state": self.state.value,
            "closed_at": self.closed_at.isoformat() if self.closed_at else None,
            "namespaces": list(self.namespaces),
            "collections": [list(each) for each in self.collections],
            "records": self.records,
            "deletes": self.deletes,
            "notes": list(self.notes),
            "turns": self.turns,
            "lost_again": list(self.lost_again),
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Gap:
        """Read what `to_json` gave."""
        return cls(
            number=form["number"],
            stream=form["stream"],
            reason=form["reason"],
            last_good=_time_from_json(form["last_good"]),
            first_known=_time_from_json(form["first_known"]),
            lost_token=form["lost_token"],
            found_at=datetime.fromisoformat(form["found_at"]),
            state=GapState(form["state"]),
            closed_at=datetime.fromisoformat(form["closed_at"]) if form["closed_at"] else None,
            namespaces=tuple(form["namespaces"]),
            collections=tuple((uuid, name) for uuid, name in form.get("collections", ())),
            records=form["records"],
            deletes=form["deletes"],
            notes=tuple(form["notes"]),
            turns=form.get("turns", 1),
            lost_again=tuple(form.get("lost_again", ())),
        )


class GapLedger:
    """The gaps of one stream, oldest first, in the stream's position store."""

    def __init__(self, cells: Cells, stream: str) -> None:
        self._cell = SideCell(cells, "gaps", stream)
        self._stream = stream

    @staticmethod
    def streams(cells: Cells) -> list[str]:
        """Give the names of the streams that have a ledger."""
        return sorted(name for found in cells.names() if (name := stream_of(found, "gaps")) is not None)

    def all(self) -> list[Gap]:
        """Give every gap there ever was."""
        return [Gap.from_json(form) for form in (self._cell.read() or {}).get("gaps", [])]

    def open_gap(self) -> Gap | None:
        """Give the gap that is not closed, if there is one; a stream has at most one."""
        return next((gap for gap in reversed(self.all()) if gap.is_open), None)

    def record(
        self,
        reason: str,
        position: Position | None,
        *,
        lost_token: str | None = None,
        first_known: Timestamp | None = None,
        state: GapState = GapState.OPEN,
    ) -> Gap:
        """Write down a gap after `position`, or give the one that is already open."""
        already = self.open_gap()
        if already is not None:
            return already
        gap = Gap(
            number=len(self.all()) + 1,
            stream=self._stream,
            reason=reason,
            last_good=position.cluster_time if position else None,
            first_known=first_known,
            lost_token=lost_token,
            found_at=datetime.now(UTC),
            state=state,
            closed_at=datetime.now(UTC) if state is GapState.ACCEPTED else None,
        )
        self._cell.update(lambda document: {"gaps": [*document.get("gaps", []), gap.to_json()]})
        return gap

    def change(self, gap: Gap, **fields: Any) -> Gap:
        """Write down what is known now about a gap."""
        changed = replace(gap, **fields)

        def put(document: dict[str, Any]) -> dict[str, Any]:
            gaps = document.get("gaps", [])
            if not any(form["number"] == gap.number for form in gaps):
                raise GapUnknown(f"{self._stream} has no gap {gap.number}")
            return {"gaps": [changed.to_json() if form["number"] == gap.number else form for form in gaps]}

        self._cell.update(put)
        return changed

    def grow(self, gap: Gap, reason: str, lost_token: str | None) -> Gap:
        """Write down that history was lost again before the gap was closed: what was read of it counts for nothing."""
        note = f"{datetime.now(UTC).isoformat(timespec='seconds')}: lost again, {reason}"
        lost = () if lost_token is None or lost_token in (gap.lost_token, *gap.lost_again) else (lost_token,)
        return self.change(
            gap,
            state=GapState.OPEN,
            first_known=None,
            turns=gap.turns + 1,
            lost_again=(*gap.lost_again, *lost)[-_TOKENS_KEPT:],
            notes=(*gap.notes, note)[-_NOTES_KEPT:],
        )

    def close(self, gap: Gap, *, records: int, deletes: int) -> Gap:
        """Note that the sink equals the source again."""
        done = {"state": GapState.CLOSED, "closed_at": datetime.now(UTC), "collections": ()}
        return self.change(gap, **done, records=records, deletes=deletes)


def _time_to_json(time: Timestamp | None) -> dict[str, int] | None:
    return None if time is None else {"t": time.time, "i": time.inc}


def _time_from_json(form: dict[str, int] | None) -> Timestamp | None:
    return None if form is None else Timestamp(form["t"], form["i"])


def consumer_of(store: PositionStore, name: str) -> Consumer:
    """Give the stream of a name: its position, on each shard where that is known, and whether it recovers."""
    position = store.load(name)
    if position is None:
        raise PositionInvalid(f"the store has no position for {name}", hint="`tailrace position show` lists the names.")
    gap = GapLedger(store.cells, name).open_gap()
    return Consumer(
        name,
        position.cluster_time,
        {shard: ResumeToken.parse(token).cluster_time for shard, token in position.shards.items()},
        position.counts.events,
        position.saved_at.timestamp() if position.saved_at else None,
        recovering=gap is not None and gap.state is GapState.RECOVERING,
    )
