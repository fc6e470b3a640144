"""What a table's columns become when documents bring something new.

What a table did not expect is drift: noticed, counted and kept with the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, replace
from typing import Final

from tailrace.warehouse.columns.shapes import COLUMN_TYPES, WIDER, Columns, Shape, leaves, merged_documents, shape_text

META: Final = {
    "_key": "binary",
    "_version": "bigint",
    "_token": "string",
    "_is_deleted": "boolean",
    "_refused": "string",
    "_rest": "string",
    "_bson": "binary",
    "_told_as": "string",
}
"""The columns that every mirror has beside those of its documents, with their types in Spark.

`_told_as` is the name that the collection had in the row's newest event; null is the name it has now.
"""
_OF_ICEBERG: Final = {
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
    "_change_type", "_change_ordinal", "_commit_snapshot_id",
}  # fmt: skip
RESERVED: Final = frozenset({*META, *_OF_ICEBERG})
"""Fields of these names stay in `_rest`."""
MOST_LEVELS: Final = 32
"""How deeply columns are nested, where nobody says otherwise."""
ANY_NAME: Final = re.compile(r"[^\W\d][\w \-]{0,127}")
DRIFT_PROPERTY: Final = "tailrace.drift"
_MOST_ENTRIES: Final = 200


@dataclass(frozen=True, slots=True)
class Change:
    """One column that is added or widened."""

    path: tuple[str, ...]
    """Names from the top; `element` stands for the elements of an array, as in Iceberg."""
    shape: Shape
    was: Shape = None

    @property
    def is_promotion(self) -> bool:
        """Whether the column was there before."""
        return self.was is not None

    def needs_rewrite(self, in_place: Set[tuple[str, str]]) -> bool:
        """Whether the rows have to be made anew, for a format that widens only these columns in place."""
        return self.is_promotion and (self.was, self.shape) not in in_place

    @property
    def field(self) -> str:
        """The path for people."""
        return ".".join(self.path).replace(".element", "[]")


@dataclass(frozen=True, slots=True)
class Evolution:
    """The columns after some documents, and the steps to get there."""

    columns: Columns
    changes: tuple[Change, ...]
    needs_rewrite: bool = False
    """Whether the rows that are there have to be made anew."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far columns may grow."""

    columns: int
    """How many scalar columns there may be."""
    levels: int = MOST_LEVELS
    """How many levels one may have."""
    may_rewrite: bool = True
    """Whether rows may be made anew for wider columns; if not, only what the format does in place is done."""
    in_place: Set[tuple[str, str]] = frozenset()
    """What the format widens in place."""
    name: re.Pattern[str] = ANY_NAME
    """What the format lets a column be called."""


def evolve(columns: Columns, found: Iterable[Columns], limits: Limits) -> Evolution:
    """Give the columns that take what was found as well, as far as the lattice and the limits allow."""
    wanted = columns
    for shape in found:
        wanted = merged_documents(wanted, shape)
    growth = _Growth(limits.columns - sum(1 for _ in leaves(columns)), limits)
    new = growth.document(columns, wanted, (), RESERVED)
    changes = tuple(growth.changes)
    return Evolution(new, changes, any(change.needs_rewrite(limits.in_place) for change in changes))


class _Growth:
    """Walks along old and wanted columns, and takes over what may be."""

    def __init__(self, capacity: int, limits: Limits) -> None:
        self._capacity = capacity
        self._limits = limits
        self.changes: list[Change] = []

    def document(
        self, old: Mapping[str, Shape], wanted: Mapping[str, Shape], path: tuple[str, ...], taken: frozenset[str]
    ) -> Columns:
        new = dict(old)
        lower = {name.lower() for name in old} | taken
        for name, shape in wanted.items():
            if name in old:
                new[name] = self.value(old[name], shape, (*path, name))
            # Most engines do not tell upper from lower case in names of columns.
            elif self._limits.name.fullmatch(name) and name.lower() not in lower:
                known = self._known_part(shape, len(path) + 1)
                if known is not None:
                    new[name] = known
                    lower.add(name.lower())
                    self.changes.append(Change((*path, name), known))
        return new

    def value(self, old: Shape, wanted: Shape, path: tuple[str, ...]) -> Shape:
        if isinstance(old, dict) and isinstance(wanted, dict):
            return self.document(old, wanted, path, frozenset())
        if isinstance(old, list) and isinstance(wanted, list):
            return [self.value(old[0], wanted[0], (*path, "element"))]
        if isinstance(old, str) and isinstance(wanted, str) and wanted in WIDER.get(old, ()):
            change = Change(path, wanted, old)
            if self._limits.may_rewrite or not change.needs_rewrite(self._limits.in_place):
                self.changes.append(change)
                return wanted
        return old

    def _known_part(self, shape: Shape, level: int) -> Shape:
        """Give the part of a shape that can be a column now; what is still unknown waits for a later document.

        What is nested too deeply never becomes one: Arrow, which carries the rows, ends at 64 levels.
        """
        if level > self._limits.levels:
            return None
        if isinstance(shape, str):
            if shape not in COLUMN_TYPES or self._capacity <= 0:
                return None
            self._capacity -= 1
            return shape
        if isinstance(shape, list):
            element = self._known_part(shape[0], level + 1)
            return None if element is None else [element]
        if isinstance(shape, dict):
            inner: Columns = {}
            names: set[str] = set()
            for name, one in shape.items():
                is_possible = self._limits.name.fullmatch(name) and name.lower() not in names
                if is_possible and (kept := self._known_part(one, level + 1)):
                    inner[name] = kept
                    names.add(name.lower())
            return inner or None
        return None


def described(change: Change) -> tuple[str, str, str]:
    """Give field, kind of change and the column now, as drift has them."""
    return change.field, "promoted" if change.is_promotion else "added", shape_text(change.shape)


@dataclass(frozen=True, slots=True)
class Drift:
    """One way in which documents left the columns of their table."""

    field: str
    """The path, with dots; the elements of an array are `[]`."""
    change: str
    """added (a column), promoted (its type), or rest (the value is in `_rest`, or was refused)."""
    found: str
    """The kind of the values that made the difference."""
    column: str
    """The kind of the column now; empty where there is none."""
    count: int
    first_seen: str
    """ISO time of the first batch that had it."""
    last_seen: str


def read_drift(text: str | None) -> list[Drift]:
    """Read the property of a table."""
    return [Drift(**entry) for entry in json.loads(text)] if text else []


def write_drift(entries: Iterable[Drift]) -> str:
    """Write the property of a table."""
    return json.dumps([asdict(entry) for entry in entries], separators=(",", ":"))


def add_drift(known: Iterable[Drift], found: Iterable[Drift]) -> list[Drift]:
    """Count what was found on top of what is known; the oldest entries leave when there are too many."""
    merged = {(one.field, one.change, one.found, one.column): one for one in known}
    for one in found:
        location = one.field, one.change, one.found, one.column
        before = merged.pop(location, None)
        if before is not None:
            one = replace(one, count=before.count + one.count, first_seen=before.first_seen)
        merged[location] = one
    return list(merged.values())[-_MOST_ENTRIES:]
