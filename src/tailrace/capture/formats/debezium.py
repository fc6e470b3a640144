"""Events as Debezium's MongoDB connector writes them, so that its consumers can read ours; and its records back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Final

import orjson
from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.json_util import JSONMode, JSONOptions
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.capture.formats import debezium_json
from tailrace.capture.formats.debezium_json import Part
from tailrace.capture.formats.format import DOCUMENT_KEY, OP_CODES, Format, KeyRule, losses_of
from tailrace.capture.formats.stored_records import (
    OPERATIONS,
    KafkaRecord,
    Plain,
    ReadEvent,
    RecordDecoder,
    StoredRecord,
    event_of_parts,
    operation_of,
)
from tailrace.capture.record import Record
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json
from tailrace.raw.cluster_time import ClusterTime

VERSION: Final = "3.6.1.Final"
"""The release of Debezium whose bytes these are; consumers find it in `source.version`."""
_LOST_TYPES: Final = {raw.DB_POINTER: "a DBPointer"}
_is_escaped = re.compile("[\x00-\x1f\U00010000-\U0010ffff]").search
_UTF_16 = Struct(">H")


class DebeziumFormat(Format):
    """The envelope of Debezium's MongoDB connector with the JSON converter and `schemas.enable=false`, byte for byte.

    As there, `before` and `after` are strings of strict Extended JSON, `updateDescription.updatedFields` and the key's
    `id` strings of relaxed Extended JSON; a delete is followed by a tombstone; and events that are about no document
    (drop, rename, invalidate ...) give no record. It cannot carry a field that is there twice, a DBPointer, or a
    document that looks like a value of Extended JSON; int64 and int32 are alike in keys and updates.
    """

    content_type = "application/json"

    def __init__(
        self,
        server_name: str,
        key: KeyRule = DOCUMENT_KEY,
        *,
        tombstones: bool = True,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(key, tombstones=tombstones)
        self._server_name = server_name
        self._clock = clock

    def _records(self, event: bytes) -> Sequence[Record]:
        """Give one record or none, and a tombstone after a delete if they are wanted."""
        view = ChangeEvent(event)
        op = OP_CODES.get(view.operation_type)
        if op is None or view.document_key is None:
            return ()
        found, is_missing = self._key.of_raw(view)
        key = debezium_json.decode(found)
        parts = [
            None if part is None else debezium_json.decode(part)
            for part in (view.full_document_before_change, view.full_document, view.update_description)
        ]
        value = self._value(view, op, *parts)
        return self._delivered(self._record(view, _key_text(key.fields), value, _loss([key, *parts]), is_missing))

    def _value(self, view: ChangeEvent, op: str, before: Part | None, after: Part | None, update: Part | None) -> bytes:
        now = self._clock()
        return orjson.dumps(
            {
                "before": None if before is None else debezium_json.strict(before.fields),
                "after": None if after is None else debezium_json.strict(after.fields),
                "updateDescription": None if update is None else _update_description(update.fields),
                "source": self._source(view, op, now),
                "op": op,
                "ts_ms": now // 1_000_000,
                "transaction": None,
            }
        )

    def _source(self, view: ChangeEvent, op: str, now: int) -> dict[str, Any]:
        """Say where the record is from; a document of a snapshot has the time at which it was read."""
        is_read = op == "r"
        wall = view.wall_time
        milliseconds = view.cluster_time.seconds * 1_000 if wall is None else wall
        nanoseconds = now if is_read else milliseconds * 1_000_000
        database, collection = view.database_and_collection
        lsid, number = view.document(b"lsid"), view.spans.get(b"txnNumber")
        return {
            "version": VERSION,
            "connector": "mongodb",
            "name": self._server_name,
            "ts_ms": nanoseconds // 1_000_000,
            "snapshot": "true" if is_read else "false",
            "db": _jackson(database),
            "sequence": None,
            "ts_us": nanoseconds // 1_000,
            "ts_ns": nanoseconds,
            "collection": _jackson(collection),
            "ord": -1 if is_read else view.cluster_time.increment,
            "lsid": None if lsid is None else debezium_json.strict(debezium_json.decode(lsid).fields),
            "txnNumber": None if number is None else raw.number_at(view.raw, number[0], number[1]),
            "wallTime": wall,
        }


def _loss(parts: Sequence[Part | None]) -> str | None:
    """Name what the strings inside the envelope cannot carry."""
    for part in parts:
        if part is not None and (not part.is_exact or extended_json.may_look_like_a_value(part.data)):
            found = next(losses_of(part.data, _LOST_TYPES), None)
            if found is not None:
                return found
    return None


def _key_text(key: Mapping[str, Any]) -> bytes:
    """Write `{"id": "..."}` with the `_id` as relaxed Extended JSON; a chosen field keeps its name."""
    chosen = {"id": key["_id"]} if "_id" in key else key
    return orjson.dumps({name: debezium_json.relaxed(value) for name, value in chosen.items()})


def _update_description(decoded: Mapping[str, Any]) -> dict[str, Any]:
    truncated = [
        {"field": _jackson(item["field"]), "size": item["newSize"]} for item in decoded.get("truncatedArrays") or ()
    ]
    return {
        "removedFields": [_jackson(name) for name in decoded.get("removedFields") or ()] or None,
        "updatedFields": debezium_json.relaxed_update(decoded.get("updatedFields") or {}),
        "truncatedArrays": truncated or None,
    }


def _jackson(name: str | None) -> Any:
    """Give a name of the envelope itself as Jackson does, with capital letters in escapes and pairs of surrogates."""
    if name is None or _is_escaped(name) is None:
        return name
    return orjson.Fragment(f'"{"".join(map(_jackson_character, name))}"'.encode())


def _jackson_character(character: str) -> str:
    if character in "\b\f\n\r\t" or " " <= character < "\U00010000":
        return orjson.dumps(character).decode()[1:-1]
    return "".join(f"\\u{unit:04X}" for (unit,) in _UTF_16.iter_unpack(character.encode("utf-16-be")))


class DebeziumDecoder(RecordDecoder):
    """Reads the envelope of Debezium's MongoDB connector, or the before/after envelope of its relational ones.

    Documents are strings of strict Extended JSON, compared in the relaxed spelling.
    """

    name = "debezium"

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        envelope = orjson.loads(value)
        source = envelope["source"]
        document = _relaxed(envelope["after"])
        described = envelope["updateDescription"]
        update = None if described is None else {**described, "updatedFields": orjson.loads(described["updatedFields"])}
        operation = OPERATIONS.get(envelope["op"], envelope["op"])
        namespace = f"{source['db']}.{source['collection']}"
        return StoredRecord(namespace, operation, _key(key, document), document, update)

    def _event(self, record: KafkaRecord) -> ReadEvent | None:
        envelope = _payload(orjson.loads(record.value))
        if "op" not in envelope:
            return None  # heartbeats, transaction markers and schema changes are no events
        source = envelope["source"]
        is_mongodb = source["connector"] == "mongodb"
        return _from_mongodb(record, envelope, source) if is_mongodb else _from_table(record, envelope, source)


def _key(key: bytes, document: Plain | None) -> Plain | None:
    found = orjson.loads(key)
    if "id" in found:
        return {"_id": extended_json.loads(found["id"])}
    return None if document is None else extended_json.loads(orjson.dumps({"_id": document["_id"]}))


def _relaxed(strict: str | None) -> Plain | None:
    if strict is None:
        return None
    options = JSONOptions(json_mode=JSONMode.LEGACY, datetime_conversion=DatetimeConversion.DATETIME_MS)
    plain: Plain = orjson.loads(extended_json.relaxed_of(json_util.loads(strict, json_options=options)))
    return plain


def _from_mongodb(record: KafkaRecord, envelope: Mapping[str, Any], source: Mapping[str, Any]) -> ReadEvent:
    after, before = (_document(envelope.get(name)) for name in ("after", "before"))
    update = envelope.get("updateDescription")
    parts: dict[str, Any] = {"fullDocument": after, "fullDocumentBeforeChange": before}
    if update is not None:
        parts["updateDescription"] = {
            "updatedFields": extended_json.loads(update.get("updatedFields") or "{}"),
            "removedFields": update.get("removedFields") or [],
            "truncatedArrays": [
                {"field": item["field"], "newSize": item["size"]} for item in update.get("truncatedArrays") or ()
            ],
        }
    key = orjson.loads(record.key) if record.key else {}
    identity = _payload(key).get("id")
    document_key = {"_id": extended_json.loads(identity)} if identity is not None else _identity_of(after or before)
    if source.get("wallTime") is not None:
        parts["wallTime"] = DatetimeMS(source["wallTime"])
    return event_of_parts(
        record,
        operation_of(record, envelope["op"], is_replace=after is not None and update is None),
        _cluster_time(record, source).timestamp,
        {"db": source["db"], "coll": source["collection"]},
        {**parts, "documentKey": document_key},
    )


def _cluster_time(record: KafkaRecord, source: Mapping[str, Any]) -> ClusterTime:
    """Give the cluster time in the headers of our own records; Debezium's have the second of the wall clock at best."""
    text = record.headers.get("clusterTime")
    if text is not None:
        return ClusterTime.from_text(text)
    return ClusterTime.of(source["ts_ms"] // 1000, max(0, source.get("ord") or 0))


def _from_table(record: KafkaRecord, envelope: Mapping[str, Any], source: Mapping[str, Any]) -> ReadEvent | None:
    """A row is a document; its key, or the only column of its key, is the `_id`."""
    if envelope["op"] not in ("c", "u", "d", "r"):
        return None  # `t` is a truncated table, `m` a message of the application
    after, before = envelope.get("after"), envelope.get("before")
    key = _payload(orjson.loads(record.key)) if record.key else None
    identity = next(iter(key.values())) if key and len(key) == 1 else key or (after or before or {})
    namespace = source.get("schema") or source.get("db")
    return event_of_parts(
        record,
        operation_of(record, envelope["op"], is_replace=True),
        Timestamp(source["ts_ms"] // 1000, 0),
        {"db": namespace, "coll": source["table"]},
        {
            "wallTime": DatetimeMS(source["ts_ms"]),
            "documentKey": {"_id": identity},
            "fullDocument": None if after is None else {"_id": identity, **after},
            "fullDocumentBeforeChange": None if before is None else {"_id": identity, **before},
        },
    )


def _payload(form: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give what is inside a record with its schema (`schemas.enable=true`)."""
    return form["payload"] if form.keys() == {"schema", "payload"} else form


def _document(text: str | None) -> Any:
    return None if text is None else extended_json.loads(text)


def _identity_of(document: Mapping[str, Any] | None) -> Any:
    if document is None:
        raise ValueError("the record has neither a key nor an image")
    return {"_id": document["_id"]}
