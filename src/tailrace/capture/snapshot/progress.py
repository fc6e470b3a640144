"""What a snapshot has planned and what of it is done, kept in the position store so that a restart goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
        self.state = SnapshotState.from_json(form) if form else None
        """The newest snapshot, running or finished; None when there never was one."""

    @property
    def unfinished(self) -> SnapshotState | None:
        """The snapshot that a restart has to go on with."""
        return self.state if self.state and not self.state.finished else None

    def begin(self, reason: str, gap: int | None = None, *, only: tuple[str, ...] = ()) -> SnapshotState:
        """Note, before anything else is done, that a snapshot is needed."""
        return self._write(SnapshotState(reason, gap, only))

    def plan(self, chunks: Mapping[str, list[Chunk]], estimated: Mapping[str, int]) -> None:
        """Keep the plan, so that chunk numbers mean the same after a restart."""
        bounds = {name: _bounds_of(each) for name, each in chunks.items()}
        self._plan_cell.update(lambda _: {"bounds": bounds})
        state = self._running()
        state.collections = {
            name: _Collection(len(each), estimated=estimated.get(name, 0)) for name, each in chunks.items()
        }
        state.planned = True
        self._write(state)

    def is_left(self, namespace: str) -> bool:
        """Whether something of a collection is still to be read."""
        state = self.unfinished
        if state is None:
            return False
        if not state.planned:
            return not state.only or namespace in state.only
        return namespace in state.collections and state.collections[namespace].left > 0

    def rename(self, namespace: str, to: str | None) -> None:
        """Go on under the new name of a collection, at the chunks that are left; with none, leave it out."""
        state = self._running()
        if not state.planned:
            names = (to if name == namespace else name for name in state.only)
            state.only = tuple(name for name in names if name is not None)
        elif (known := state.collections.get(namespace)) is not None:
            if to is not None:
                self._plan_cell.update(lambda form: _renamed(form or {}, namespace, to))
                state.collections[to] = replace(known)
            # Rows that are on their way are still noted under the old name.
            state.collections[namespace] = replace(known, done=(1 << known.chunks) - 1)
        self._write(state)

    def also(self, namespace: str, chunks: list[Chunk], reason: str) -> None:
        """Note that a collection has to be read, by the snapshot that is under way or by one of its own."""
        state = self.unfinished
        if state is None:
            self._write(SnapshotState(reason, only=(namespace,)))
        elif not state.planned:
            state.only = (*state.only, namespace) if state.only else ()
            self._write(state)
        else:
            bounds = _bounds_of(chunks)
            self._plan_cell.update(lambda form: {"bounds": {**(form or {}).get("bounds", {}), namespace: bounds}})
            state.collections[namespace] = _Collection(len(chunks))
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
        """Note chunks, with their number of documents, whose every document the sink has acknowledged."""
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
        """Note that the sink has acknowledged everything."""
        state = self._running()
        state.finished = True
        return self._write(state)

    def summary(self) -> dict[str, int]:
        """Give the numbers for a progress bar: chunks, chunks done, documents estimated, documents read."""
        collections = self.state.collections.values() if self.state else ()
        return {
            "chunks": sum(each.chunks for each in collections),
            "chunks_done": sum(each.done.bit_count() for each in collections),
            "estimated": sum(each.estimated for each in collections),
            "read": sum(each.read for each in collections),
        }

    def _running(self) -> SnapshotState:
        if self.state is None:
            raise ValueError("no snapshot was begun")
        return self.state

    def _write(self, state: SnapshotState) -> SnapshotState:
        self._state_cell.update(lambda _: state.to_json())
        self.state = state
        return state


def _bounds_of(chunks: list[Chunk]) -> list[str]:
    return bounds_to_json([chunk.upper for chunk in chunks if chunk.upper])


def _renamed(form: Mapping[str, Any], namespace: str, to: str) -> dict[str, Any]:
    bounds = form.get("bounds", {})
    return {"bounds": {**bounds, to: bounds.get(namespace, [])}}
