"""A fake for tests of handlers: change events as a server makes them, and a delivery without one.

    from tailrace.testing import deliver, insert

    def test_paid_orders_are_counted():
        delivered = deliver(count_paid, [insert("shop.orders", {"_id": 1, "paid": True})])
        assert delivered.handled == 1

`deliver` calls the handler as `consume` does: with the same retries and dead letters, and in batches where it is
declared so. `crash_after` has the process die and start again, so that events come twice, as they may.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tailrace.driver.options import refuse_unknown
from tailrace.durable.consuming import HANDLER_OPTIONS, Handler
from tailrace.durable.handling import Handling
from tailrace.errors import HandlerFailed
from tailrace.raw.display import decode_for_display
from tailrace.token import ResumeToken

__all__ = ["Delivered", "delete", "deliver", "insert", "replace", "update"]

_FIRST_SECOND = 1_700_000_000
_numbers = itertools.count(1)


def insert(namespace: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Make the event of an insert; a document without an `_id` gets one, as the driver would give it."""
    whole = {"_id": document.get("_id", ObjectId()), **document}
    return _event("insert", namespace, whole["_id"], {"fullDocument": whole})


def replace(namespace: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Make the event of a replacement."""
    if "_id" not in document:
        raise ValueError("the document that replaces another needs the `_id` of both")
    return _event("replace", namespace, document["_id"], {"fullDocument": dict(document)})


def update(
    namespace: str,
    id_: Any,
    set: Mapping[str, Any] | None = None,
    unset: Iterable[str] = (),
    *,
    document: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the event of an update; `document` is what a lookup or a post-image would give."""
    changes = {"updatedFields": dict(set or {}), "removedFields": list(unset), "truncatedArrays": []}
    looked_up = {} if document is None else {"fullDocument": dict(document)}
    return _event("update", namespace, id_, {"updateDescription": changes, **looked_up})


def delete(namespace: str, id_: Any) -> dict[str, Any]:
    """Make the event of a delete."""
    return _event("delete", namespace, id_, {})


@dataclass(slots=True)
class Delivered:
    """What became of the events."""

    handled: int = 0
    """Calls of the handler that returned, counted in events; repeated ones too."""
    pauses: list[float] = field(default_factory=list)
    """The pauses before the handler was called again, which are not waited for."""
    dead_letters: list[tuple[dict[str, Any], HandlerFailed]] = field(default_factory=list)
    """The dead letters: events that failed for good, and why."""


def deliver(
    handle: Handler | Callable[[Any], Any],
    events: Iterable[Mapping[str, Any]],
    *,
    crash_after: int | None = None,
    **options: Any,
) -> Delivered:
    """Call a handler for events as `consume` does, and say what became of them.

    Options are those of `consume` (`retries`, `dead_letters`, `batch_size`); a declared handler brings its own. Without
    dead letters an event that fails for good raises HandlerFailed. After `crash_after` events all are delivered again
    from the first on, as after a crash before the position was saved.
    """
    if not callable(handle):
        raise TypeError(f"the handler is no function: {handle!r}")
    refuse_unknown("deliver()", options, HANDLER_OPTIONS)
    declared = dict(handle.options) if isinstance(handle, Handler) else {}
    chosen = {**declared, **options}
    function = handle.function if isinstance(handle, Handler) else handle
    result = Delivered()
    size = int(chosen.get("batch_size", 1))

    def keep(event: bytes, error: HandlerFailed) -> None:
        result.dead_letters.append((decode_for_display(event), error))

    handling = Handling(
        function,
        bson.decode,
        in_batches=size > 1,
        retries=int(chosen.get("retries", 3)),
        dead_letters=keep if chosen.get("dead_letters") is not None else None,
    )
    encoded = [bson.encode(event) for event in events]
    runs = [encoded] if crash_after is None else [encoded[:crash_after], encoded]
    for run in runs:
        for begin in range(0, len(run), size):
            step, before = run[begin : begin + size], len(result.dead_letters)
            _call(handling, function, step, result.pauses)
            result.handled += len(step) - (len(result.dead_letters) - before)
    return result


def _call(handling: Handling, function: Callable[[Any], Any], step: list[bytes], pauses: list[float]) -> None:
    if not inspect.iscoroutinefunction(function):
        handling(step, pauses.append)
        return

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    asyncio.run(handling.call_async(step, note))


def _event(operation: str, namespace: str, id_: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    database, _, collection = namespace.partition(".")
    if not database or not collection:
        raise ValueError(f"{namespace!r} is no namespace; write db.collection")
    time = Timestamp(_FIRST_SECOND, next(_numbers))
    return {
        "_id": ResumeToken.high_water_mark(time).to_document(),
        "operationType": operation,
        "clusterTime": time,
        **more,
        "ns": {"db": database, "coll": collection},
        "documentKey": {"_id": id_},
    }
