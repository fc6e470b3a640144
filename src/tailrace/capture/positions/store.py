"""The contract of position stores: what is kept, who may write it, and what is remembered of each change.

A store keeps one cell per stream name: the position, the lease of its writer and a counter. Cells change only by
compare-and-set, and the rules about leases are written here, once, over the five places a cell can be in. Every
acquisition of a lease raises its epoch; a writer whose epoch is not the current one is refused (`LeaseLost`),
whatever its clock says. Clocks decide only when a silent writer may be replaced, and never those of two machines
together. A lease has expired when its cell has not changed for the length of the lease: by the clock of the store where
it has one (PostgreSQL, MongoDB, Redis), else by that of the challenger, which has then watched it for so long itself
(files, Kafka). The holder counts from before it asked for the lease (`leader.py`), so it is done first.

Where records wait for a commit together with their cell, the cell cannot be written meanwhile. The lease is kept by a
cell beside it then (`RENEWAL`), which counts as long as it is of the same epoch; the fence is that of the cell.

The audit trail holds every acquisition, release and every change that has a reason, with who, when, what and why.
A stream that simply goes on leaves no line per save: the acquisitions and releases around it say from where to where.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

import orjson

from tailrace.capture.positions.audit_trail import Change
from tailrace.capture.positions.observed import ObservedCells, boot_time
from tailrace.capture.positions.position import Position, has_ended
from tailrace.errors import CaptureError, LeaseHeld, LeaseLost, PositionInvalid
from tailrace.owned.closeable import Closeable

DEFAULT_LEASE_SECONDS = 30.0
BESIDE = "~"
"""How names begin of cells that lie beside the positions: the ledger of gaps, snapshot plans."""
RENEWAL = "renewal"
"""The kind of the cells that keep a lease whose own cell waits for a commit."""
_CONFLICTS_BEFORE_GIVING_UP = 20
_HOW_TO_REPAIR = (
    "`tailrace position history` shows where it stood when it was last started; `tailrace position set` puts it there."
)


class Cells(Protocol):
    """Where cells are: the little that a database has to do.

    All bytes are JSON without line breaks, and a cell has a `counter` that grows with every change. Any thread may
    call.
    """

    def read(self, name: str) -> bytes | None:
        """Give the cell, or None when there is none."""

    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        """Put `cell` in place of `expected` and add `change` to the trail, durably, or do nothing and give False.

        A reader sees the old cell or the new one, never a mixture, whatever dies when.
        """

    def seconds_since_written(self, name: str, cell: bytes) -> float | None:
        """Give the age of this very cell by the clock of the store.

        None when the store has no clock, holds another cell by now, or does not know when this one was written.
        """

    def changes(self, name: str, limit: int) -> list[bytes]:
        """Give the last changes of the trail, the newest first."""

    def names(self) -> list[str]:
        """Give every name that has a cell."""

    def close(self) -> None:
        """Give connections back."""


@runtime_checkable
class TransactionalCells(Cells, Protocol):
    """Cells that are committed together with records."""

    def holds_records(self, name: str) -> bool:
        """Whether records wait for a commit together with the cell. Answers at once, whatever other threads do."""

    def separate(self) -> Cells:
        """Give the same cells over connections of their own, which answer while a commit waits.

        They may give what is not committed yet.
        """


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to move one position, for `seconds` from when it was last renewed."""

    name: str
    owner: str
    epoch: int
    seconds: float
    asked_at: float = field(default=-math.inf, compare=False)
    """When its holder asked for this term, by `boot_time` of its machine: the term began then or later. Nobody else
    knows it."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """What is kept under a name. The counter makes every cell differ from every earlier one."""

    counter: int = 0
    epoch: int = 0
    owner: str = ""
    seconds: float = 0.0
    expires_at: float = 0.0
    """By the wall clock of the writer. Version 0.1.0 goes by it, and nobody else does."""
    position: Position | None = None

    def to_bytes(self) -> bytes:
        form = {name: getattr(self, name) for name in ("counter", "epoch", "owner", "seconds", "expires_at")}
        return orjson.dumps({**form, "position": self.position.to_json() if self.position else None})

    @classmethod
    def from_bytes(cls, data: bytes | None) -> _Cell:
        if data is None:
            return cls()
        try:
            form = orjson.loads(data)
            position = form.pop("position")
            return cls(**form, position=Position.from_json(position) if position else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PositionInvalid(f"what the store holds is not a position: {error}", hint=_HOW_TO_REPAIR) from None


class PositionStore(Closeable):
    """Positions by name over any `Cells`; made by `open_store(url)`.

    Any thread may use it: one call at a time has its turn.
    """

    def __init__(
        self, cells: Cells, clock: Callable[[], float] = time.time, lease_clock: Callable[[], float] = boot_time
    ) -> None:
        """`clock` gives the times that are kept and shown; `lease_clock` measures leases that are watched."""
        self._cells = cells
        self._clock = clock
        self._lease_clock = lease_clock
        self._observed = ObservedCells(lease_clock)
        self._known: dict[str, bytes | None] = {}
        self._turn = threading.RLock()
        self.renewals = cells.separate() if isinstance(cells, TransactionalCells) else None
        """Where leases are kept whose cells wait for a commit."""

    @property
    def cells(self) -> Cells:
        """Where the cells are; the exactly-once sink of Kafka shares a producer with them."""
        return self._cells

    def load(self, name: str) -> Position | None:
        """Give the position, or None when the name has none yet."""
        return self._read(name).position

    def holder(self, name: str) -> Lease | None:
        """Give the lease that is held now, or None.

        In a store without a clock a lease that was left behind on another machine is taken for held until this store
        has watched it for its whole length.
        """
        with self._turn:
            cell = self._read(name)
            return _lease(name, cell) if self._seconds_left(name, cell) > 0 else None

    def acquire(self, name: str, owner: str, *, seconds: float = DEFAULT_LEASE_SECONDS, reason: str = "start") -> Lease:
        """Become the writer of a name, or raise LeaseHeld with the holder and when to try again."""

        def take(cell: _Cell) -> tuple[_Cell, Change]:
            left = self._seconds_left(name, cell)
            if left > 0:
                raise LeaseHeld(name, holder=cell.owner, retry_after=left)
            taken = replace(
                cell, epoch=cell.epoch + 1, owner=owner, seconds=seconds, expires_at=self._clock() + seconds
            )
            return taken, self._change("taken-over" if cell.owner else "acquired", reason, taken)

        with self._turn:
            self._known.pop(name, None)  # what is remembered says nothing of how long ago it was written
            asked_at = self._lease_clock()
            return _lease(name, self._update(name, take), asked_at)

    def wait_for_lease(
        self,
        name: str,
        owner: str,
        *,
        seconds: float = DEFAULT_LEASE_SECONDS,
        timeout: float,
        sleep: Callable[[float], None] = time.sleep,
        reason: str = "start",
    ) -> Lease:
        """Try to acquire until it succeeds; after `timeout` seconds the LeaseHeld of the last try is raised."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self.acquire(name, owner, seconds=seconds, reason=reason)
            except LeaseHeld as held:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                sleep(min(left, max(0.05, min(held.retry_after, 1.0))))

    def save(self, position: Position, lease: Lease, *, reason: str | None = None) -> Lease:
        """Move the position and renew the lease, in one step that other writers cannot come between.

        Without a reason the position only goes forward: a step back is a mistake of the program (PositionInvalid),
        unless a person or a recovery says why.
        """

        def move(cell: _Cell) -> tuple[_Cell, Change | None]:
            self._check_writer(cell, lease)
            before = cell.position
            if reason is None and before and position.cluster_time < before.cluster_time:
                raise PositionInvalid(
                    f"the position of {lease.name} would go back from {before.cluster_time} to "
                    f"{position.cluster_time} without a reason"
                )
            signed = position.signed(lease.owner, lease.epoch, datetime.fromtimestamp(self._clock(), UTC))
            moved = replace(cell, position=signed, expires_at=self._clock() + lease.seconds)
            return moved, self._change("moved", reason, moved) if reason else None

        asked_at = self._lease_clock()
        return _lease(lease.name, self._update(lease.name, move), asked_at)

    def renew(self, lease: Lease) -> Lease:
        """Keep the lease for another term without moving the position."""

        def extend(cell: _Cell) -> tuple[_Cell, None]:
            self._check_writer(cell, lease)
            return replace(cell, expires_at=self._clock() + lease.seconds), None

        asked_at = self._lease_clock()
        return _lease(lease.name, self._update(lease.name, extend), asked_at)

    def release(self, lease: Lease, *, reason: str = "stop") -> None:
        """Let the next writer in at once."""

        def leave(cell: _Cell) -> tuple[_Cell, Change]:
            self._check_writer(cell, lease)
            return replace(cell, owner="", expires_at=0.0), self._change("released", reason, cell)

        self._update(lease.name, leave)

    def delete(self, lease: Lease, *, reason: str) -> None:
        """Forget the position and release the lease; the trail and the epoch stay."""

        def forget(cell: _Cell) -> tuple[_Cell, Change]:
            self._check_writer(cell, lease)
            gone = replace(cell, position=None)
            return replace(gone, owner="", expires_at=0.0), self._change("deleted", reason, gone)

        self._update(lease.name, forget)

    def discard_damaged(self, name: str, *, reason: str) -> bool:
        """Forget what cannot be read, so that a person can say where the stream stands; gives whether there was any.

        The epochs go on behind those of the trail: a writer of before stays fenced.
        """
        with self._turn:
            self._known.pop(name, None)
            damaged = self._observed.read(name, self._cells.read)
            if _is_readable(damaged):
                return False
            epoch = max((change.epoch for change in self.history(name)), default=0)
            empty = _Cell(counter=round(self._clock() * 1000), epoch=epoch)
            trail = orjson.dumps(self._change("discarded", reason, empty).to_json())
            if not self._cells.swap(name, damaged, empty.to_bytes(), trail):
                raise LeaseLost(f"others keep changing the position of {name}")
            return True

    def history(self, name: str, limit: int = 50) -> list[Change]:
        """Give the last changes of the audit trail, the newest first; what cannot be read of it is left out."""
        lines = self._cells.changes(name, limit)
        return [change for line in lines if (change := Change.from_bytes(line)) is not None]

    def names(self) -> list[str]:
        """Give the names that have a position, or something that should be one, sorted."""
        names = [name for name in self._cells.names() if not name.startswith(BESIDE)]
        return sorted(name for name in names if not _is_empty(self._cells.read(name)))

    def close(self) -> None:
        """Give connections back; leases stay until they are released or expire."""
        if self.renewals is not None:
            self.renewals.close()
        self._cells.close()

    def _update(self, name: str, change: Callable[[_Cell], tuple[_Cell, Change | None]]) -> _Cell:
        """Apply `change` to the newest cell; when another writer was quicker, look again.

        The first try trusts what this store saw last, so that a save is one round trip. A swap whose answer was lost
        on the way is found to be done already.
        """
        attempted: bytes | None = None
        with self._turn:
            for _ in range(_CONFLICTS_BEFORE_GIVING_UP):
                is_remembered = name in self._known
                before = self._known[name] if is_remembered else self._observed.read(name, self._cells.read)
                self._known.pop(name, None)
                if attempted is not None and before == attempted:
                    return self._remember(name, before)
                try:
                    after, line = change(_Cell.from_bytes(before))
                except CaptureError:
                    if is_remembered:
                        continue  # what was remembered may be out of date
                    raise
                attempted = replace(after, counter=after.counter + 1).to_bytes()
                trail = orjson.dumps(line.to_json()) if line else None
                if self._cells.swap(name, before, attempted, trail):
                    return self._remember(name, attempted)
        raise LeaseLost(f"others keep changing the position of {name}")

    def _read(self, name: str) -> _Cell:
        with self._turn:
            return self._remember(name, self._observed.read(name, self._cells.read))

    def _remember(self, name: str, data: bytes | None) -> _Cell:
        self._known[name] = data
        return _Cell.from_bytes(data)

    def _seconds_left(self, name: str, cell: _Cell) -> float:
        """Give how long the cell that was just read is still held; 0 when it is not.

        The store's clock may be set back, so what was watched counts too.
        """
        if not cell.owner or has_ended(cell.owner):
            return 0.0
        age = min(self._observed.seconds_unchanged(name), self._seconds_since_renewal(name, cell))
        if age < cell.seconds:
            age = max(age, self._cells.seconds_since_written(name, self._observed.last(name)) or 0.0)
        return max(0.0, cell.seconds - age)

    def _seconds_since_renewal(self, name: str, cell: _Cell) -> float:
        """Give for how long the cell beside has been seen unchanged that keeps the same lease, where there is one."""
        if self.renewals is None:
            return math.inf
        beside = f"{BESIDE}{RENEWAL}~{name}"
        found = self._observed.read(beside, self.renewals.read)
        kept = _renewal(found)
        is_same = (kept.get("epoch"), kept.get("owner")) == (cell.epoch, cell.owner)
        return self._observed.seconds_unchanged(beside) if is_same else math.inf

    def _check_writer(self, cell: _Cell, lease: Lease) -> None:
        if (cell.epoch, cell.owner) != (lease.epoch, lease.owner):
            now = cell.owner or "nobody"
            raise LeaseLost(
                f"{lease.owner} wrote {lease.name} in epoch {lease.epoch}; in epoch {cell.epoch} the writer is {now}"
            )

    def _change(self, what: str, why: str, cell: _Cell) -> Change:
        at = datetime.fromtimestamp(self._clock(), UTC)
        return Change(at, cell.owner, what, why, cell.epoch, cell.position)


def _is_readable(data: bytes | None) -> bool:
    try:
        _Cell.from_bytes(data)
    except PositionInvalid:
        return False
    return True


def _is_empty(data: bytes | None) -> bool:
    return _is_readable(data) and _Cell.from_bytes(data).position is None


def _renewal(data: bytes | None) -> dict[str, Any]:
    """Give what a cell beside says of a lease; one that cannot be read renews nothing."""
    with suppress(ValueError, KeyError, TypeError):
        kept: dict[str, Any] = orjson.loads(data)["document"] if data else {}
        return kept
    return {}


def _lease(name: str, cell: _Cell, asked_at: float = -math.inf) -> Lease:
    return Lease(name, cell.owner, cell.epoch, cell.seconds, asked_at)
