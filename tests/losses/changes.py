"""One change, as every tool can tell it: what was done to which document, by which numbered write.

Resume tokens would tell changes apart, but Debezium does not carry them. So each insert and update sets a number of
its own, and a document is deleted once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
from bson import CodecOptions, json_util

LENIENT: CodecOptions[dict[str, Any]] = CodecOptions(unicode_decode_error_handler="replace")
_OPERATIONS = {
    "insert": "insert", "c": "insert", "read": "read", "r": "read",
    "update": "update", "u": "update", "delete": "delete", "d": "delete",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """An insert, an update, a delete, or a document as a snapshot reads it."""

    operation: str
    key: str
    write: int | None
    """The number that the write has set; None of a delete."""


def of_event(event: Any) -> Change | None:
    """The change of a MongoDB change event, as the server, tailrace and MongoDB's own connector give it."""
    operation = _OPERATIONS.get(event["operationType"])
    if operation is None:
        return None
    fields = event.get("fullDocument") or (event.get("updateDescription") or {}).get("updatedFields") or {}
    return Change(operation, str(event["documentKey"]["_id"]), fields.get("write"))


def of_event_json(key: bytes | None, value: bytes) -> Change | None:
    """The change of an event as Extended JSON."""
    return of_event(json_util.loads(value))


def of_debezium(key: bytes | None, value: bytes) -> Change | None:
    """The change of a record of Debezium, whose documents are JSON in JSON."""
    record = json.loads(value)
    operation = _OPERATIONS.get(record["op"])
    if operation is None or key is None:
        return None
    fields: dict[str, Any] = {}
    if record.get("after"):
        fields = json_util.loads(record["after"])
    elif (record.get("updateDescription") or {}).get("updatedFields"):
        fields = json_util.loads(record["updateDescription"]["updatedFields"])
    return Change(operation, str(json_util.loads(json.loads(key)["id"])), fields.get("write"))


def decode(raw: bytes) -> Any:
    """An event's bytes, whatever its strings hold."""
    return bson.decode(raw, LENIENT)


@dataclass(frozen=True, slots=True)
class Count:
    """What a tool made of the changes of one run."""

    changes: int
    delivered: int
    lost: int
    duplicated: int
    reordered: int
    invented: int


def count(truth: Sequence[Change], delivered: Iterable[Change]) -> Count:
    """Compare; order is that of the first arrivals of one document's changes.

    A document that was read counts as the change that made it so.
    """
    places = {change: place for place, change in enumerate(truth)}
    by_write = {(change.key, change.write): change for change in truth if change.write is not None}
    seen: Counter[Change] = Counter()
    newest: dict[str, int] = {}
    reordered = 0
    for given in delivered:
        change = by_write.get((given.key, given.write), given) if given.operation == "read" else given
        seen[change] += 1
        place = places.get(change)
        if place is None or seen[change] > 1:
            continue
        reordered += place < newest.get(change.key, -1)
        newest[change.key] = max(place, newest.get(change.key, -1))
    return Count(
        changes=len(places),
        delivered=sum(seen.values()),
        lost=sum(change not in seen for change in places),
        duplicated=sum(times - 1 for times in seen.values()),
        reordered=reordered,
        invented=sum(change not in places for change in seen),
    )


def count_documents(truth: Mapping[str, int | None], delivered: Sequence[Change]) -> Count:
    """Compare the documents that there are with those that the changes tell, where nobody has all changes any more.

    Lost is a document that is missing, or has an older value, or was deleted and is still there for a consumer.
    """
    told: dict[str, int | None] = {}
    for change in delivered:
        if change.operation == "delete":
            told.pop(change.key, None)
        elif change.write is not None or change.key not in told:
            told[change.key] = change.write
    missing = object()
    wrong = sum(told.get(key, missing) != truth.get(key, missing) for key in told.keys() | truth.keys())
    return Count(len(truth), len(delivered), wrong, 0, 0, 0)
