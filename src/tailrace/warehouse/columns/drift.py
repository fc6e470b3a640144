"""What documents had that their table did not expect: noticed, counted and kept with the table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final

DRIFT_PROPERTY: Final = "tailrace.drift"
_MOST_ENTRIES: Final = 200


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
