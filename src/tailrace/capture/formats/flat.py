"""Small flat records: a few chosen fields, for consumers that want a table; and what can be read back of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from tailrace.capture.formats.format import (
    DOCUMENT_KEY,
    OP_CODES,
    DecodedFormat,
    KeyRule,
    is_missing,
    losses_of,
    value_at,
)
from tailrace.capture.formats.plain import loss_of_scalar, plain_value
from tailrace.capture.formats.stored_records import (
    OPERATIONS,
    KafkaRecord,
    ReadEvent,
    RecordDecoder,
    StoredRecord,
    event_of_parts,
    operation_of,
)
from tailrace.errors import EventUnconvertible
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json
from tailrace.raw.cluster_time import ClusterTime

_REPRESENTABLE: Final = frozenset((str, int, bool, type(None), Int64, ObjectId, Decimal128, bytes, Binary, Timestamp))
ROW: Final = ("op", "ns", "key", "cluster_time", "ts_ms", "image")
"""What every row has before the chosen fields; a chosen field of such a name takes its place."""


class FlatFormat(DecodedFormat):
    """One level of JSON: `op`, `ns`, `key`, `cluster_time`, `ts_ms`, `image`, and the chosen fields under their paths.

    `cluster_time` is one 64-bit number (seconds in the upper half), good as a version: of two records of a document the
    greater one is the newer. `image` says what the fields are: `full`, the whole document; `delta`, only what an update
    changed, a removed field being null; `before`, the document that a delete removed; `none`. Values lose their BSON
    types: an ObjectId is its hex digits, a date ISO 8601, a decimal a string, a binary base64, a timestamp a number.
    What has no such form (NaN, infinity, a date outside the years 1 to 9999, a regular expression, MinKey, MaxKey, a
    reference, code with a scope, a field that is there twice) is unrepresentable.
    """

    def __init__(self, fields: Sequence[str], key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        super().__init__(key, tombstones=tombstones)
        self._fields = tuple(fields)

    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes:
        operation, time = view.operation_type, view.token_time
        image, fields = self._image(document)
        row = {
            "op": OP_CODES.get(operation, operation),
            "ns": view.namespace,
            "key": plain_value(document.get("documentKey", {}).get("_id")),
            "cluster_time": int(time),
            "ts_ms": time.seconds * 1_000 if view.wall_time is None else view.wall_time,
            "image": image,
            **{path: plain_value(value) for path, value in fields.items()},
        }
        try:
            return orjson.dumps(row)
        except orjson.JSONEncodeError as error:
            raise EventUnconvertible(f"the event cannot be written as a flat record: {error}") from error

    def _loss(self, document: Mapping[str, Any], view: ChangeEvent, value: bytes) -> str | None:
        _, fields = self._image(document)
        found = _first_loss(document.get("documentKey", {}).get("_id"), "key")
        for path, chosen in fields.items():
            found = found or _first_loss(chosen, path)
        if found is None and not extended_json.is_exact(document, view.raw):
            found = next(filter(self._is_chosen, losses_of(view.raw, {})), None)
        return found

    def _is_chosen(self, loss: str) -> bool:
        """Whether something lost is in a chosen field; all of an update counts, where paths have dots in names."""
        field, _, path = loss.partition(".")
        roots = {field.partition(".")[0] for field in self._fields}
        return field in ("documentKey", "updateDescription") or re.split("[. ]", path)[0] in roots

    def _image(self, document: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        full = document.get("fullDocument")
        if full is not None:
            return "full", self._chosen(full)
        if "updateDescription" in document:
            return "delta", self._changed(document["updateDescription"])
        before = document.get("fullDocumentBeforeChange")
        return ("before", self._chosen(before)) if before is not None else ("none", {})

    def _chosen(self, document: Mapping[str, Any]) -> dict[str, Any]:
        found = {path: value_at(document, path) for path in self._fields}
        return {path: None if is_missing(value) else value for path, value in found.items()}

    def _changed(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """Give the chosen fields that an update touched, as far as its description has their new values.

        A field whose inside changed (`tags.3`, a truncated array) is left out: its whole value is not known.
        """
        updated, removed = update.get("updatedFields", {}), set(update.get("removedFields", ()))
        fields: dict[str, Any] = {}
        for path in self._fields:
            for parent in _parents(path):
                if parent in removed:
                    fields[path] = None
                elif parent in updated:
                    rest = path[len(parent) + 1 :]
                    value = value_at(updated[parent], rest) if rest else updated[parent]
                    fields[path] = None if is_missing(value) else value
        return fields


def _parents(path: str) -> list[str]:
    """Give `a`, `a.b`, `a.b.c` of `a.b.c`."""
    names = path.split(".")
    return [".".join(names[: count + 1]) for count in range(len(names))]


def _first_loss(value: Any, path: str) -> str | None:
    """Name the first value inside that flat records have no form for."""
    if type(value) in _REPRESENTABLE:
        return None
    if isinstance(value, Mapping):
        return next((loss for name in value if (loss := _first_loss(value[name], f"{path}.{name}"))), None)
    if isinstance(value, list):
        return next((loss for inner in value if (loss := _first_loss(inner, path))), None)
    if (loss := loss_of_scalar(value, path)) is not None:
        return loss
    if isinstance(value, Regex | MinKey | MaxKey | DBRef) or (isinstance(value, Code) and value.scope is not None):
        return f"{path} is of the type {type(value).__name__}"
    return None


class FlatDecoder(RecordDecoder):
    """Reads `flat`: only a few fields, so that keys can be compared and documents cannot."""

    name = "flat"
    has_documents = False

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state; the field `key` has lost its type, so the record's own key is used."""
        row = orjson.loads(value)
        found = extended_json.loads(key)
        return StoredRecord(row["ns"], OPERATIONS.get(row["op"], row["op"]), found if "_id" in found else None)

    def _event(self, record: KafkaRecord) -> ReadEvent:
        row = orjson.loads(record.value)
        cluster_time, image = row.pop("cluster_time"), row.pop("image")
        operation = operation_of(record, row.pop("op"), is_replace=image == "full")
        database, _, collection = row.pop("ns").partition(".")
        key, milliseconds = row.pop("key"), row.pop("ts_ms")
        return event_of_parts(
            record,
            operation,
            ClusterTime(cluster_time).timestamp,
            {"db": database, **({"coll": collection} if collection else {})},
            {"wallTime": DatetimeMS(milliseconds), "documentKey": {"_id": key}, **_images(image, key, row)},
        )


def _images(image: str, key: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields of an event that the chosen fields of a row are from."""
    if image == "full":
        return {"fullDocument": {"_id": key, **_unflattened(row)}}
    if image == "before":
        return {"fullDocumentBeforeChange": {"_id": key, **_unflattened(row)}}
    if image == "delta":
        removed = [path for path, value in row.items() if value is None]
        updated = {path: value for path, value in row.items() if value is not None}
        return {"updateDescription": {"updatedFields": updated, "removedFields": removed}}
    return {}


def _unflattened(row: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `{"a.b": 1}` into `{"a": {"b": 1}}`."""
    document: dict[str, Any] = {}
    for path, value in row.items():
        *parents, name = path.split(".")
        target = document
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    return document
