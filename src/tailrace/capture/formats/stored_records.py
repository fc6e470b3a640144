"""Read records back: which document they are about, what they did to it, and the document after them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
import orjson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.json_util import JSONMode, JSONOptions

from tailrace.errors import SettingsError
from tailrace.raw import extended_json

Plain = Mapping[str, Any]
"""A document as JSON values, in the spelling that a format's documents are compared in."""

_READ: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_JSON = JSONOptions(json_mode=JSONMode.RELAXED, datetime_conversion=DatetimeConversion.DATETIME_MS)
_LETTERS = {"c": "insert", "u": "update", "d": "delete", "r": "read"}


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record of a topic, understood."""

    namespace: str
    operation: str
    document_key: Plain | None
    """The decoded documentKey; None for events about a collection or database."""
    document: Plain | None = None
    """The whole document after the event, when the record has it."""
    update: Plain | None = None
    """updateDescription, when there is one."""


class RecordCodec(ABC):
    """Understands the records of one format, whose keys are the documentKey."""

    carries_documents = True

    @abstractmethod
    def read(self, key: bytes, value: bytes) -> StoredRecord:
        """Understand a record."""

    def spelled(self, document: bytes) -> Plain:
        """Give a document of the source (BSON) as this format's documents are compared."""
        decoded = bson.decode(document, _READ)
        spelled: Plain = orjson.loads(extended_json.relaxed(decoded, document))
        return spelled


class JsonCodec(RecordCodec):
    """`json`: relaxed Extended JSON."""

    def read(self, key: bytes, value: bytes) -> StoredRecord:
        """Understand a record."""
        event = orjson.loads(value)
        found = event.get("documentKey")
        return _of_event(event, None if found is None else _decoded(orjson.dumps(found)))


class CanonicalCodec(JsonCodec):
    """`canonical`: Extended JSON that keeps every type."""

    def spelled(self, document: bytes) -> Plain:
        """Give a document with the types of its numbers."""
        spelled: Plain = orjson.loads(extended_json.canonical(bson.decode(document, _READ)))
        return spelled


class BsonCodec(CanonicalCodec):
    """`bson`: the event's own bytes, compared as canonical Extended JSON."""

    def read(self, key: bytes, value: bytes) -> StoredRecord:
        """Understand a record."""
        decoded = bson.decode(value, _READ)
        return _of_event(orjson.loads(extended_json.canonical(decoded)), decoded.get("documentKey"))


class DebeziumCodec(RecordCodec):
    """`debezium`: documents are strings of strict Extended JSON, compared in the relaxed spelling."""

    def read(self, key: bytes, value: bytes) -> StoredRecord:
        """Understand a record."""
        envelope = orjson.loads(value)
        source = envelope["source"]
        document = _relaxed(envelope["after"])
        described = envelope["updateDescription"]
        update = None if described is None else {**described, "updatedFields": orjson.loads(described["updatedFields"])}
        operation = _LETTERS.get(envelope["op"], envelope["op"])
        namespace = f"{source['db']}.{source['collection']}"
        return StoredRecord(namespace, operation, self._key(key, document), document, update)

    def _key(self, key: bytes, document: Plain | None) -> Plain | None:
        found = orjson.loads(key)
        if "id" in found:
            return {"_id": json_util.loads(found["id"], json_options=_JSON)}
        return None if document is None else _decoded(orjson.dumps({"_id": document["_id"]}))


class FlatCodec(RecordCodec):
    """`flat`: only a few fields, so that keys can be compared and documents cannot."""

    carries_documents = False

    def read(self, key: bytes, value: bytes) -> StoredRecord:
        """Understand a record; the field `key` has lost its type, so the record's own key is used."""
        row = orjson.loads(value)
        found = _decoded(key)
        return StoredRecord(row["ns"], _LETTERS.get(row["op"], row["op"]), found if "_id" in found else None)


_CODECS: Mapping[str, type[RecordCodec]] = {
    "json": JsonCodec,
    "canonical": CanonicalCodec,
    "bson": BsonCodec,
    "debezium": DebeziumCodec,
    "flat": FlatCodec,
}


def codec_of(format_name: str) -> RecordCodec:
    """Give the codec of a format; records of a user's own function cannot be read back."""
    if format_name not in _CODECS:
        raise SettingsError(
            f"records of the format {format_name!r} cannot be read back", hint=f"Possible with {', '.join(_CODECS)}."
        )
    return _CODECS[format_name]()


def _of_event(event: Mapping[str, Any], key: Plain | None) -> StoredRecord:
    ns = event.get("ns") or {}
    namespace = f"{ns['db']}.{ns['coll']}" if "coll" in ns else str(ns.get("db", ""))
    return StoredRecord(
        namespace, event["operationType"], key, event.get("fullDocument"), event.get("updateDescription")
    )


def _decoded(text: bytes) -> Plain:
    decoded: Plain = json_util.loads(text, json_options=_JSON)
    return decoded


def _relaxed(strict: str | None) -> Plain | None:
    if strict is None:
        return None
    options = JSONOptions(json_mode=JSONMode.LEGACY, datetime_conversion=DatetimeConversion.DATETIME_MS)
    plain: Plain = orjson.loads(extended_json.relaxed_of(json_util.loads(strict, json_options=options)))
    return plain
