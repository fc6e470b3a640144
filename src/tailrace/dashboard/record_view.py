"""What a record of any of our formats says: its namespace, its time and what changed, without knowing the format."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import bson
import orjson

from tailrace.errors import BsonMalformed
from tailrace.raw.display import relaxed_for_display

_LONGEST_SUMMARY = 160
_LONGEST_VALUE = 40
_LEAST_BSON = 5


def as_json(value: bytes) -> Any:
    """Give a value as JSON has it: JSON as it is, BSON as relaxed Extended JSON, else base64; None for a tombstone."""
    if not value:
        return None
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        pass
    if len(value) >= _LEAST_BSON and int.from_bytes(value[:4], "little") == len(value):
        try:
            return orjson.loads(relaxed_for_display(value))
        except (bson.errors.BSONError, BsonMalformed, orjson.JSONDecodeError):
            pass
    return {"base64": base64.b64encode(value).decode()}


def as_text(value: bytes) -> str:
    """Give the beginning of a value that is not whole."""
    return value.decode(errors="replace")


def wall_time_of(record: Any) -> float | None:
    """Give when the event happened in Unix seconds, where the record says it by the millisecond.

    `wallTime` is in the events of 6.0, and in `source` of Debezium's records. Flat records have it as `ts_ms`, which
    ends in 000 where the server gave none.
    """
    if not isinstance(record, Mapping):
        return None
    source = _body(record).get("source")
    if isinstance(source, Mapping) and isinstance(source.get("wallTime"), int):
        return int(source["wallTime"]) / 1_000
    milliseconds = record.get("ts_ms") if "image" in record else None
    if isinstance(milliseconds, int) and milliseconds % 1_000:
        return milliseconds / 1_000
    return _date(record.get("wallTime"))


def namespace_of(record: Any) -> str | None:
    """Give `db.coll`, where the record says it."""
    if not isinstance(record, Mapping):
        return None
    body = _body(record)
    ns, source = body.get("ns"), body.get("source")
    if isinstance(ns, str):
        return ns
    if isinstance(ns, Mapping):
        return ".".join(str(ns[part]) for part in ("db", "coll") if part in ns)
    if isinstance(source, Mapping) and "db" in source:
        return f"{source['db']}.{source.get('collection', '')}".rstrip(".")
    return None


def key_of(key: bytes | None) -> str:
    """Give a record's key in few words: the bare `_id` where there is nothing else in it."""
    found = as_json(key or b"")
    if isinstance(found, Mapping) and "payload" in found:
        found = found["payload"]
    if isinstance(found, Mapping) and len(found) == 1:
        found = next(iter(found.values()))
    return "" if found is None else short(found)


def summary_of(record: Any) -> str:
    """Say in one line what changed: the fields of an update, or the first fields of the document."""
    if not isinstance(record, Mapping):
        return ""
    body = _body(record)
    update = body.get("updateDescription")
    if isinstance(update, Mapping):
        updated = update.get("updatedFields")
        if isinstance(updated, str):
            updated = as_json(updated.encode())
        removed = [f"-{name}" for name in update.get("removedFields") or ()]
        return _cut("  ".join([_pairs(updated if isinstance(updated, Mapping) else {}), *removed]).strip())
    for name in ("fullDocument", "after"):
        document = body.get(name)
        if isinstance(document, str):
            document = as_json(document.encode())
        if isinstance(document, Mapping):
            return _cut(_pairs(document))
    if "image" in body:
        about = ("op", "ns", "key", "cluster_time", "ts_ms", "image")
        return _cut(_pairs({name: value for name, value in body.items() if name not in about}))
    return ""


def short(value: Any) -> str:
    """Give a value in few words, as people write it."""
    if isinstance(value, Mapping) and len(value) == 1:
        (name, inner), *_ = value.items()
        if name.startswith("$"):
            return short(inner)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _pairs(document: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={short(value)}" for name, value in list(document.items())[:12] if name != "_id")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SUMMARY else f"{text[: _LONGEST_SUMMARY - 1]}…"


def _body(record: Mapping[str, Any]) -> Mapping[str, Any]:
    payload = record.get("payload")
    return payload if isinstance(payload, Mapping) else record


def _date(value: Any) -> float | None:
    inner = value.get("$date") if isinstance(value, Mapping) else None
    if isinstance(inner, Mapping):
        return int(inner.get("$numberLong", 0)) / 1_000
    if isinstance(inner, str):
        return datetime.fromisoformat(inner).timestamp()
    return None
