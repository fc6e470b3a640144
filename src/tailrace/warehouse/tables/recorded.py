"""Where the tables of a job that lost its checkpoint say that it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.spark.checkpoint import Recorded
from tailrace.warehouse.tables.states import Snapshot, TableState

BACKFILL: Final = "backfill "
"""With a time behind it, the name of the query of a backfill."""
_START_OPTIONS: Final = ("startAfter", "startAtOperationTime")
_QUERY: Final = "tailrace.query"


def recorded_start(states: Iterable[TableState]) -> Recorded | None:
    """Say where the newest batch in these tables begins; None when no job has written them.

    That batch may be in some tables only, so it is the one to begin with again.
    """
    ours = ((one, state) for state in states for one in state.snapshots if _QUERY in one.properties)
    newest = max(ours, key=lambda found: found[0].at, default=None)
    if newest is None:
        return None
    snapshot, state = newest
    return Recorded(f"the table {state.name}", f"{snapshot.at:%Y-%m-%d %H:%M:%S} UTC", _start(snapshot))


def _start(snapshot: Snapshot) -> Mapping[str, str] | None:
    if snapshot.properties[_QUERY].startswith(BACKFILL):
        return None  # a load that was cut off has filled some tables only, and nothing tells it from a whole one
    begins = json.loads(snapshot.properties.get("tailrace.offsets.start") or "{}")
    if isinstance(begins.get("token"), str):
        return {"startAfter": begins["token"]}
    return {name: begins[name] for name in _START_OPTIONS if name in begins} or None
