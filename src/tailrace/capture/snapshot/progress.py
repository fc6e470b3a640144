"""What a snapshot has planned and what of it is done, kept in the position store so that a restart goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.capture.positions.side_cell import SideCell
from tailrace.capture.positions.store import Cells
from tailrace.capture.snapshot.chunk import Chunk, bounds_from_json, bounds_to_json, chunks_between


@dataclass(slots=True)
class _Collection:
    """How far one collection is."""

    chunks: int
    done: int = 0
    """A bit for each finished chunk."""
    estimated: int = 0
    read: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"chunks": self.chunks, "done": f"{self.done:x}", "estimated": self.estimated, "read": self.read}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> _Collection:
        return cls(form["chunks"], int(form["done"], 16), form["estimated"], form["read"])

    @property
    def left(self) -> int:
        return self.chunks - self.done.bit_count()


@dataclass(slots=True)
class SnapshotState:
    """The document that is kept: why the snapshot is taken, and how far it is."""

    reason: str
    gap: int | None = None
    """The gap in the ledger that it closes."""
    only: tuple[str, ...] = ()
    """The collections that were asked for; none are all that the stream captures."""
    finished: bool = False
    planned: bool = False
    deletes: int = 0
    deletes_checked: bool = False
    collections: dict[str, _Collection] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give the form that is stored."""
        return {
            "reason": self.reason,
            "gap": self.gap,
            "only": list(self.only),
            "finished": self.finished,
            "planned": self.planned,
            "deletes": self.deletes,
            "deletes_checked": self.deletes_checked,
            "collections": {name: state.to_json() for name, state in self.collections.items()},
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> SnapshotState:
        """Read what `to_json` gave."""
        collections = {name: _Collection.from_json(state) for name, state in form["collections"].items()}
        flags = {name: form[name] for name in ("reason", "gap", "finished", "planned", "deletes", "deletes_checked")}
        return cls(**flags, only=tuple(form.get("only", ())), collections=collections)


class SnapshotProgress:
    """The snapshot of one stream. There is at most one that is not finished."""

    def __init__(self, cells: Cells, stream: str) -> None:
        self._state_cell = SideCell(cells, "snapshot", stream)
        self._plan_cell = SideCell(cells, "chunks", stream)
        form = self._state_cell.read()
        self._state = SnapshotState.from_json(form) if form else None

    @property
    def state(self) -> SnapshotState | None:
        """The newest snapshot, running or finished; None when there never was one."""
        return self._state

    @property
    def unfinished(self) -> SnapshotState | None:
        """The snapshot that a restart has to go on with."""
        return self._state if self._state and not self._state.finished else None

    def begin(self, reason: str, gap: int | None = None, *, only: tuple[str, ...] = ()) -> SnapshotState:
        """Note, before anything else is done, that a snapshot is needed."""
        return self._write(SnapshotState(reason, gap, only))

    def plan(self, chunks: Mapping[str, list[Chunk]], estimated: Mapping[str, int]) -> None:
        """Keep the plan, so that chunk numbers mean the same after a restart."""
        bounds = {name: bounds_to_json([chunk.upper for chunk in each if chunk.upper]) for name, each in chunks.items()}
        self._plan_cell.update(lambda _: {"bounds": bounds})
        state = self._running()
        state.collections = {
            name: _Collection(len(each), estimated=estimated.get(name, 0)) for name, each in chunks.items()
        }
        state.planned = True
        self._write(state)

    def chunks_left(self) -> list[Chunk]:
        """Give the chunks that are not done, collection after collection."""
        bounds = (self._plan_cell.read() or {}).get("bounds", {})
        return [
            chunk
            for name, state in self._running().collections.items()
            for chunk in chunks_between(name, bounds_from_json(bounds[name]))
            if not state.done >> chunk.number & 1
        ]

    def chunks_done(self, chunks: Iterable[tuple[Chunk, int]]) -> None:
        """Note chunks, with their number of documents, whose every document is safe in the sink."""
        state = self._running()
        for chunk, documents in chunks:
            collection = state.collections[chunk.namespace]
            collection.done |= 1 << chunk.number
            collection.read += documents
        self._write(state)

    def deletes_checked(self, deletes: int) -> None:
        """Note that all keys captured before were looked for, and that so many were gone."""
        state = self._running()
        state.deletes, state.deletes_checked = deletes, True
        self._write(state)

    def finish(self) -> SnapshotState:
        """Note that everything is safe in the sink."""
        state = self._running()
        state.finished = True
        return self._write(state)

    def summary(self) -> dict[str, int]:
        """Give the numbers for a progress bar: chunks, chunks done, documents estimated, documents read."""
        collections = self._state.collections.values() if self._state else ()
        return {
            "chunks": sum(each.chunks for each in collections),
            "chunks_done": sum(each.done.bit_count() for each in collections),
            "estimated": sum(each.estimated for each in collections),
            "read": sum(each.read for each in collections),
        }

    def _running(self) -> SnapshotState:
        if self._state is None:
            raise ValueError("no snapshot was begun")
        return self._state

    def _write(self, state: SnapshotState) -> SnapshotState:
        self._state_cell.update(lambda _: state.to_json())
        self._state = state
        return state
