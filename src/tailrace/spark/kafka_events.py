"""Records of topics back into change events: our own formats, and Debezium's.

Every format ends as the BSON of a change event, so that one piece of code makes the columns. What a format has
dropped cannot come back: `json` writes an int64 like an int32, `flat` has chosen fields only, and Debezium's records
have no resume token. Events without one get a token of their place in the topic: it sorts as Kafka's offsets do, so of
two records of one key the later is the newer, which is the order that Kafka guarantees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import bson
import orjson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.json_util import JSONOptions
from bson.timestamp import Timestamp

from tailrace import raw
from tailrace.capture.formats.event_fields import OP_CODES
from tailrace.errors import EventUnconvertible, SettingsError
from tailrace.token import ResumeToken

_OPTIONS = JSONOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_BSON: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_OPERATIONS = {"c": "insert", "d": "delete", "r": "read"}
WHOLE_IN_VALUE = frozenset(("bson", "json", "canonical"))
"""Formats whose values are whole events: keys and headers say nothing that is not in there."""
_FULL_NAMES = set(OP_CODES) | {"drop", "rename", "dropDatabase", "invalidate"}


class KafkaRecord(NamedTuple):
    """One record of a topic."""

    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = MappingProxyType({})

    @property
    def token(self) -> bytes | None:
        """The resume token in the headers of our own records, as BSON."""
        text = self.headers.get("token")
        return None if text is None else ResumeToken.from_hex(text).to_bson()

    @property
    def place(self) -> bytes:
        """A token that sorts by offset; it is no position in MongoDB."""
        return raw.document(raw.element(raw.STRING, b"_data", raw.string(f"82{self.offset:016X}")))

    @property
    def operation(self) -> str | None:
        """The operation in the headers of our own records."""
        found = self.headers.get("operationType")
        return None if found is None else found.decode()


class ReadEvent(NamedTuple):
    """An event out of a record."""

    bytes: bytes
    fields: Mapping[str, Any] | None = None
    """The same decoded, with dates as DatetimeMS, where reading it brought that about."""


Reader = Callable[[KafkaRecord], ReadEvent | None]


def reader_of(name: str) -> Reader:
    """Give the function that reads records of a format; it gives None for records that are no events."""
    if name not in _READERS:
        raise SettingsError(f"there is no format {name!r}", hint=f"Choose {', '.join(_READERS)}.")
    read = _READERS[name]

    def checked(record: KafkaRecord) -> ReadEvent | None:
        try:
            event = read(record)
            return event if event is None or isinstance(event, ReadEvent) else ReadEvent(event)
        except (ValueError, KeyError, TypeError, AttributeError, bson.errors.BSONError) as error:
            place = f"{record.topic}/{record.partition}@{record.offset}"
            raise EventUnconvertible(
                f"record {place} is not of the format {name}: {type(error).__name__} {error}",
                hint="Check the format, or let bad records go to the dead letters.",
            ) from error

    return checked


# --- our own formats


def _from_bson(record: KafkaRecord) -> ReadEvent:
    """Decode it: that looks at every byte, at a tenth of the cost of doing so here."""
    return ReadEvent(record.value, bson.decode(record.value, _BSON))


def _from_json(record: KafkaRecord) -> bytes:
    """Read relaxed and canonical Extended JSON alike."""
    event = _extended_json(record.value)
    if not isinstance(event, dict) or "operationType" not in event:
        raise ValueError("no operationType")
    return bson.encode(event)


def _from_flat(record: KafkaRecord) -> bytes:
    row = orjson.loads(record.value)
    cluster_time, image = row.pop("cluster_time"), row.pop("image")
    operation = _operation(record, row.pop("op"), is_replace=image == "full")
    database, _, collection = row.pop("ns").partition(".")
    key, milliseconds = row.pop("key"), row.pop("ts_ms")
    document = _unflattened(row)
    parts: dict[str, Any] = {"full": {"fullDocument": {"_id": key, **document}}}.get(image, {})
    if image == "before":
        parts = {"fullDocumentBeforeChange": {"_id": key, **document}}
    if image == "delta":
        removed = [path for path, value in row.items() if value is None]
        updated = {path: value for path, value in row.items() if value is not None}
        parts = {"updateDescription": {"updatedFields": updated, "removedFields": removed}}
    return _event(
        record,
        operation,
        Timestamp(cluster_time >> 32, cluster_time & 0xFFFFFFFF),
        {"db": database, **({"coll": collection} if collection else {})},
        {"wallTime": DatetimeMS(milliseconds), "documentKey": {"_id": key}, **parts},
    )


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


# --- Debezium


def _from_debezium(record: KafkaRecord) -> bytes | None:
    """Read the envelope of its MongoDB connector, or the before/after envelope of its relational ones."""
    envelope = _payload(orjson.loads(record.value))
    if "op" not in envelope:
        return None  # heartbeats, transaction markers and schema changes are no events
    source = envelope["source"]
    is_mongodb = source["connector"] == "mongodb"
    return _from_mongodb(record, envelope, source) if is_mongodb else _from_table(record, envelope, source)


def _from_mongodb(record: KafkaRecord, envelope: Mapping[str, Any], source: Mapping[str, Any]) -> bytes:
    after, before = _image(envelope.get("after")), _image(envelope.get("before"))
    update = envelope.get("updateDescription")
    parts: dict[str, Any] = {"fullDocument": after, "fullDocumentBeforeChange": before}
    if update is not None:
        parts["updateDescription"] = {
            "updatedFields": _extended_json(update.get("updatedFields") or "{}"),
            "removedFields": update.get("removedFields") or [],
            "truncatedArrays": [
                {"field": item["field"], "newSize": item["size"]} for item in update.get("truncatedArrays") or ()
            ],
        }
    key = orjson.loads(record.key) if record.key else {}
    identity = _payload(key).get("id")
    document_key = {"_id": _extended_json(identity)} if identity is not None else _identity_of(after or before)
    if source.get("wallTime") is not None:
        parts["wallTime"] = DatetimeMS(source["wallTime"])
    return _event(
        record,
        _operation(record, envelope["op"], is_replace=after is not None and update is None),
        Timestamp(source["ts_ms"] // 1000, source.get("ord") or 0),
        {"db": source["db"], "coll": source["collection"]},
        {**parts, "documentKey": document_key},
    )


def _from_table(record: KafkaRecord, envelope: Mapping[str, Any], source: Mapping[str, Any]) -> bytes | None:
    """A row is a document; its key, or the only column of its key, is the `_id`."""
    if envelope["op"] not in ("c", "u", "d", "r"):
        return None  # `t` is a truncated table, `m` a message of the application
    after, before = envelope.get("after"), envelope.get("before")
    key = _payload(orjson.loads(record.key)) if record.key else None
    identity = next(iter(key.values())) if key and len(key) == 1 else key or (after or before or {})
    namespace = source.get("schema") or source.get("db")
    return _event(
        record,
        _operation(record, envelope["op"], is_replace=True),
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


def _image(text: str | None) -> Any:
    return None if text is None else _extended_json(text)


def _identity_of(document: Mapping[str, Any] | None) -> Any:
    if document is None:
        raise ValueError("the record has neither a key nor an image")
    return {"_id": document["_id"]}


# --- all of them


def _extended_json(text: str | bytes) -> Any:
    """Read Extended JSON of every spelling; dates stay numbers, whatever their year."""
    return _decode(orjson.loads(text))


def _decode(value: Any) -> Any:
    """Turn parsed Extended JSON into what `bson` encodes, from the inside out."""
    if isinstance(value, dict):
        inner = {name: _decode(item) for name, item in value.items()}
        if inner and next(iter(inner)).startswith("$"):
            return _special(inner)
        return inner
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value


def _special(form: dict[str, Any]) -> Any:
    date = form.get("$date")
    if isinstance(date, str):
        moment = datetime.fromisoformat(date)
        return DatetimeMS(round(moment.timestamp() * 1000))
    if isinstance(date, int):
        return DatetimeMS(int(date))
    return json_util.object_hook(form, _OPTIONS)


def _operation(record: KafkaRecord, code: str, *, is_replace: bool) -> str:
    """Give operationType: the header has it; a letter alone leaves open whether `u` replaced the document."""
    if record.operation is not None:
        return record.operation
    if code == "u":
        return "replace" if is_replace else "update"
    if code not in _OPERATIONS and code not in _FULL_NAMES:
        raise ValueError(f"there is no operation {code!r}")
    return _OPERATIONS.get(code, code)


def _event(
    record: KafkaRecord, operation: str, time: Timestamp, namespace: Mapping[str, Any], parts: Mapping[str, Any]
) -> bytes:
    token = record.token or record.place
    fields = {"operationType": operation, "clusterTime": time, "ns": namespace}
    given = {name: value for name, value in parts.items() if value is not None}
    body = raw.body(bson.encode({**fields, **given}))
    return raw.document(raw.element(raw.DOCUMENT, b"_id", token), body)


_READERS: Mapping[str, Callable[[KafkaRecord], ReadEvent | bytes | None]] = {
    "json": _from_json,
    "canonical": _from_json,
    "bson": _from_bson,
    "flat": _from_flat,
    "debezium": _from_debezium,
}
