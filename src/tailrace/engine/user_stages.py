"""Seventh stage: the user's own stages, which may do everything but change the `_id`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bson.regex import Regex
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.engine.dialect import Dialect
from tailrace.engine.event import Event
from tailrace.engine.expression import Pipeline, compile_pipeline
from tailrace.engine.options import StreamSpec
from tailrace.engine.tokens import render_token
from tailrace.errors import StreamFatal


def compile_stages(
    spec: StreamSpec, dialect: Dialect, now: datetime | None, cluster_time: Timestamp
) -> Pipeline | None:
    """Compile the stages behind `$changeStream`; None when there are none."""
    if not spec.stages:
        return None
    return compile_pipeline(
        spec.stages,
        server_version=str(dialect),
        now=now,
        cluster_time=cluster_time,
        database=spec.scope.database.decode(),
        seconds=spec.stage_seconds,
        untimed_bytes=quick_bytes(spec.stages),
    )


_QUICK_STAGES: Final = frozenset({"$match", "$project", "$unset"})
_QUICK_OPERATORS: Final = frozenset(
    {"$and", "$or", "$nor", "$not", "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$type"}
)
_QUICK_PARTS: Final = 200
_QUICK_BYTES: Final = 32 * 1024
"""What one condition looks through in some 5 ms, when all of it is one array of small elements."""


def are_quick(stages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether stages do no more than compare and pick fields: no patterns, no expressions, not too many parts."""
    return quick_parts(stages) is not None


def quick_parts(stages: Sequence[Mapping[str, Any]]) -> int | None:
    """Give how many parts quick stages have, each of which may look at a whole event; None when they are not quick."""
    parts: list[Any] = [value for stage in stages for value in stage.values()]
    if any(name not in _QUICK_STAGES for stage in stages for name in stage):
        return None
    for number, part in enumerate(parts):
        if isinstance(part, re.Pattern | Regex) or number > _QUICK_PARTS:
            return None
        if isinstance(part, Mapping):
            if any(name.startswith("$") and name not in _QUICK_OPERATORS for name in part):
                return None
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return len(parts)


def quick_bytes(stages: Sequence[Mapping[str, Any]]) -> int:
    """Give how many bytes of events some stages are run on within a few milliseconds, whatever is in them."""
    parts = quick_parts(stages)
    return 0 if parts is None else _QUICK_BYTES // max(1, parts)


class FilterEvents:
    """Drops events early, before work is done for them that the user's filter makes vain."""

    def __init__(self, may_pass: Callable[[bytes], bool]) -> None:
        self._may_pass = may_pass

    def __call__(self, events: list[Event], given: list[Event]) -> None:
        """Pass on what the filter may let pass."""
        for event in events:
            if self._may_pass(event.raw):
                given.append(event)


class UserStages:
    """Runs the compiled stages on every event."""

    def __init__(self, run: Callable[[bytes], bytes | None]) -> None:
        self._run = run

    def __call__(self, events: list[Event], given: list[Event]) -> None:
        """Pass on what the stages make of each event."""
        for event in events:
            result = self._run(event.raw)
            if result is event.raw:
                given.append(event)
            elif result is not None:
                self._check_id(event, result)
                given.append(event._replace(raw=result))

    def _check_id(self, event: Event, result: bytes) -> None:
        """Refuse to go on without the token: nobody could resume from there."""
        found = raw.field(result, b"_id")
        if found == (raw.DOCUMENT, event.token):
            return
        shown = "{}" if found is None else f"{{_id: {raw.to_python(*found)!r}}}"
        raise StreamFatal(
            "Encountered an event whose _id field, which contains the resume token, "
            "was modified by the pipeline. Modifying the _id field of an event makes it impossible to "
            "resume the stream from that point. Only transformations that retain the unmodified _id "
            f"field are allowed. Expected: {{_id: {render_token(event.token)}}} but found: {shown}"
        )
