"""Events as Debezium's MongoDB connector writes them, so that its consumers can read ours; and its records back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.json_util import JSONMode, JSONOptions
from bson.timestamp import Timestamp

from tailrace import __version__
from tailrace.capture.formats.decoded import DecodedFormat
from tailrace.capture.formats.event_fields import OP_CODES, Place
from tailrace.capture.formats.keys import DOCUMENT_KEY, KeyRule
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
from tailrace.raw import extended_json


class DebeziumFormat(DecodedFormat):
    """The envelope of Debezium 3 with the JSON converter and `schemas.enable=false`.

    As there, `before` and `after` are strings of strict Extended JSON, `updateDescription.updatedFields` and the key's
    `id` strings of relaxed Extended JSON; a delete is followed by a tombstone; and events that are about no document
    (drop, rename, invalidate ...) give no record.
    """

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

    def _value(self, document: Mapping[str, Any], event: bytes, place: Place) -> bytes | None:
        op = OP_CODES.get(document.get("operationType", ""))
        if op is None or "documentKey" not in document:
            return None
        now = self._clock()
        return orjson.dumps(
            {
                "before": _image(document.get("fullDocumentBeforeChange"), event),
                "after": _image(document.get("fullDocument"), event),
                "updateDescription": _update_description(document.get("updateDescription"), event),
                "source": self._source(document, op, event, place.cluster_time),
                "op": op,
                "ts_ms": now // 1_000_000,
                "ts_us": now // 1_000,
                "ts_ns": now,
                "transaction": None,
            }
        )

    def _key_text(self, key: Mapping[str, Any], event: bytes) -> bytes:
        """Write `{"id": "..."}` with the `_id` as relaxed Extended JSON; a chosen field keeps its name."""
        chosen = {"id": key["_id"]} if "_id" in key else key
        return orjson.dumps({name: extended_json.relaxed(value, event).decode() for name, value in chosen.items()})

    def _source(self, document: Mapping[str, Any], op: str, event: bytes, cluster_time: int) -> dict[str, Any]:
        seconds = cluster_time >> 32
        wall = document.get("wallTime")
        lsid = document.get("lsid")
        return {
            "version": f"tailrace-{__version__}",
            "connector": "mongodb",
            "name": self._server_name,
            "ts_ms": seconds * 1_000,
            "ts_us": seconds * 1_000_000,
            "ts_ns": seconds * 1_000_000_000,
            "snapshot": "true" if op == "r" else "false",
            "db": document["ns"]["db"],
            "sequence": None,
            "collection": document["ns"]["coll"],
            "ord": cluster_time & 0xFFFFFFFF,
            "lsid": None if lsid is None else extended_json.relaxed(lsid, event).decode(),
            "txnNumber": document.get("txnNumber"),
            "wallTime": int(wall) if isinstance(wall, DatetimeMS) else None,
        }


def _image(document: Any, event: bytes) -> str | None:
    return None if document is None else extended_json.strict(document, event)


def _update_description(update: Mapping[str, Any] | None, event: bytes) -> dict[str, Any] | None:
    if update is None:
        return None
    truncated = [{"field": item["field"], "size": item["newSize"]} for item in update.get("truncatedArrays") or ()]
    return {
        "removedFields": update.get("removedFields") or None,
        "updatedFields": extended_json.relaxed(update.get("updatedFields") or {}, event).decode(),
        "truncatedArrays": truncated or None,
    }


class DebeziumDecoder(RecordDecoder):
    """Reads the envelope of Debezium's MongoDB connector, or the before/after envelope of its relational ones.

    Documents are strings of strict Extended JSON, compared in the relaxed spelling.
    """

    name = "debezium"

    def read(self, key: bytes, value: bytes) -> StoredRecord:
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
        Timestamp(source["ts_ms"] // 1000, source.get("ord") or 0),
        {"db": source["db"], "coll": source["collection"]},
        {**parts, "documentKey": document_key},
    )


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
