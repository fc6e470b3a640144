"""Events under a schema of a registry: `avro`, and `jsonschema` with the same fields as JSON.

Values begin as Confluent's serializers begin them (a zero byte and the schema's id), so that its deserializers, Spark's
`from_avro` and every other stock consumer read them. A value is an envelope: what happened where and when, the
documents before and after with the fields seen so far, and the rest of the event as Extended JSON.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tailrace.capture.formats.document_schema import DocumentSchema, Json, Unfit, write_bytes, write_long
from tailrace.capture.formats.format import DOCUMENT_KEY, DecodedFormat, KeyRule, losses_of
from tailrace.capture.formats.registry import Incompatible, SchemaRegistry
from tailrace.capture.formats.stored_records import KafkaRecord, ReadEvent, RecordDecoder, StoredRecord
from tailrace.errors import EventUnconvertible, SchemaDrifted, SettingsError
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json

_ENVELOPE: Final = "Envelope"
_DOCUMENT: Final = "Document"
_TEXT: Final = ["null", "string"]
_MARK: Final = "tailrace"
"""A property of every schema made here: others are not continued."""
_HEAD: Final = struct.Struct(">bI")


_Paths = frozenset[tuple[str, str]]
_MOST_REFUSED: Final = 1_000
_MOST_SHOWN: Final = 3
_IMAGES: Final = ("fullDocumentBeforeChange", "fullDocument")


@dataclass(slots=True)
class _Subject:
    """The schema of one subject as the registry knows it."""

    id: int | None
    schema: DocumentSchema
    refused: set[_Paths] = field(default_factory=set)
    """What the registry would not take: at which places, of which types."""


class RegisteredFormat(DecodedFormat):
    """What both kinds have in common: the schema of each collection, and how it grows."""

    kind: str

    def __init__(
        self,
        registry: SchemaRegistry,
        subject_of: Callable[[str], str],
        key: KeyRule = DOCUMENT_KEY,
        *,
        tombstones: bool = False,
        stops: bool = False,
    ) -> None:
        super().__init__(key, tombstones=tombstones)
        self._registry = registry
        self._subject_of = subject_of
        self._stops = stops
        self._subjects: dict[str, _Subject] = {}
        self.learned: Callable[[str, int, DocumentSchema], None] = _ignore
        """Called with the namespace, the id and the schema whenever the registry has given another one."""

    def _value(self, document: Mapping[str, Any], view: ChangeEvent) -> bytes:
        namespace = view.namespace
        subject = self._subjects.get(namespace) or self._open(namespace)
        if subject.id is not None:
            try:
                return _HEAD.pack(0, subject.id) + self._written(document, view, subject.schema)
            except Unfit:
                self._renew(namespace, subject)
        return self._grown(document, view, subject)

    def _renew(self, namespace: str, subject: _Subject) -> None:
        """Take over what another process has made of the schema meanwhile."""
        found = self._registry.latest(self._subject_of(namespace))
        if found is not None and found[0] != subject.id:
            subject.id, subject.schema = found[0], self._read(orjson.loads(found[1]))
            subject.refused.clear()
            self.learned(namespace, subject.id, subject.schema)

    def _loss(self, document: Mapping[str, Any], view: ChangeEvent, value: bytes) -> str | None:
        if extended_json.is_exact(document, view.raw):
            return None
        return next(losses_of(view.raw, {}), None)

    def _open(self, namespace: str) -> _Subject:
        """Begin with what the registry has."""
        name = self._subject_of(namespace)
        found = self._registry.latest(name)
        if found is None:
            opened = _Subject(None, DocumentSchema(_DOCUMENT))
        else:
            form = orjson.loads(found[1])
            if form.get(_MARK) is None:
                raise SettingsError(
                    f"the subject {name} has a schema that tailrace has not made",
                    hint="Choose another capture.topic_prefix, or delete the subject.",
                )
            opened = _Subject(found[0], self._read(form))
            self.learned(namespace, found[0], opened.schema)
        self._subjects[namespace] = opened
        return opened

    def _grown(self, document: Mapping[str, Any], view: ChangeEvent, subject: _Subject) -> bytes:
        """Let the schema grow by a document, if the registry agrees."""
        images = [document.get(part) or {} for part in _IMAGES]
        paths = frozenset(path for image in images for path in subject.schema.unfit(image))
        if not paths and subject.id is not None:
            return _HEAD.pack(0, subject.id) + self._written(document, view, subject.schema)
        if paths in subject.refused:
            raise self._refusal(view.namespace, paths, "")
        grown = self._read(self._schema(view.namespace, subject.schema))
        for image in images:
            grown.grow(image)
        value = self._written(document, view, grown)
        text = orjson.dumps(self._schema(view.namespace, grown)).decode()
        name = self._subject_of(view.namespace)
        try:
            number = self._registry.register(name, text, self.kind, is_first=subject.id is None)
        except Incompatible as error:
            if len(subject.refused) < _MOST_REFUSED:
                subject.refused.add(paths)
            raise self._refusal(view.namespace, paths, str(error)) from None
        subject.id, subject.schema = number, grown
        self.learned(view.namespace, number, grown)
        return _HEAD.pack(0, number) + value

    def _refusal(self, namespace: str, paths: _Paths, answer: str) -> Exception:
        named = ", ".join(f"{path} of the type {kind}" for path, kind in sorted(paths)[:_MOST_SHOWN])
        message = (
            f"the schema of {namespace} cannot take {named} under {self._registry.compatibility}"
            f"{f': {answer}' if answer else ''}"
        )
        if self._stops:
            return SchemaDrifted(
                message, hint="Allow more with registry.compatibility, or set registry.on_incompatible."
            )
        return EventUnconvertible(message, hint="Allow more with registry.compatibility, or correct the documents.")

    @abstractmethod
    def _written(self, document: Mapping[str, Any], view: ChangeEvent, schema: DocumentSchema) -> bytes:
        """Write the envelope; raises Unfit when the schema has no place for a value."""

    @abstractmethod
    def _schema(self, namespace: str, schema: DocumentSchema) -> Json:
        """Give the schema of the envelope."""

    @abstractmethod
    def _read(self, form: Json) -> DocumentSchema:
        """Read the documents' part of an envelope's schema."""


class AvroFormat(RegisteredFormat):
    """The envelope in Avro's binary form."""

    kind = "AVRO"
    content_type = "application/vnd.apache.avro"

    def _written(self, document: Mapping[str, Any], view: ChangeEvent, schema: DocumentSchema) -> bytes:
        out = bytearray()
        write_bytes(view.operation_type.encode(), out)
        write_bytes(view.namespace.encode(), out)
        write_long(int(view.token_time), out)
        for part in _IMAGES:
            found = document.get(part)
            if found is None:
                out.append(0)
            else:
                out.append(2)
                schema.write(found, out)
        for text in _rest(document):
            if text is None:
                out.append(0)
            else:
                out.append(2)
                write_bytes(text.encode(), out)
        return bytes(out)

    def _schema(self, namespace: str, schema: DocumentSchema) -> Json:
        fields: list[Json] = [
            {"name": "operationType", "type": "string"},
            {"name": "ns", "type": "string"},
            {"name": "clusterTime", "type": "long", "doc": "seconds << 32 | increment"},
            {"name": "before", "type": ["null", schema.avro()], "default": None},
            {"name": "after", "type": ["null", _DOCUMENT], "default": None},
            {"name": "documentKey", "type": _TEXT, "default": None},
            {"name": "updateDescription", "type": _TEXT, "default": None},
            {"name": "description", "type": _TEXT, "default": None},
        ]
        return {"type": "record", "name": _ENVELOPE, "namespace": "tailrace", _MARK: 1, "fields": fields}

    def _read(self, form: Json) -> DocumentSchema:
        before = next(each for each in form["fields"] if each["name"] == "before")
        return DocumentSchema.of_avro(_DOCUMENT, "", before["type"][1])


class JsonSchemaFormat(RegisteredFormat):
    """The envelope as JSON."""

    kind = "JSON"
    content_type = "application/json"

    def _written(self, document: Mapping[str, Any], view: ChangeEvent, schema: DocumentSchema) -> bytes:
        before, after = (None if document.get(part) is None else schema.plain(document[part]) for part in _IMAGES)
        key, update, description = _rest(document)
        return orjson.dumps(
            {
                "operationType": view.operation_type,
                "ns": view.namespace,
                "clusterTime": int(view.token_time),
                "before": before,
                "after": after,
                "documentKey": key,
                "updateDescription": update,
                "description": description,
            }
        )

    def _schema(self, namespace: str, schema: DocumentSchema) -> Json:
        text = {"anyOf": [{"type": "null"}, {"type": "string"}]}
        documents = {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/document"}]}
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": _ENVELOPE,
            _MARK: 1,
            "type": "object",
            "definitions": {"document": schema.json_schema()},
            "properties": {
                "operationType": {"type": "string"},
                "ns": {"type": "string"},
                "clusterTime": {"type": "integer"},
                "before": documents,
                "after": documents,
                "documentKey": text,
                "updateDescription": text,
                "description": text,
            },
            "additionalProperties": False,
        }

    def _read(self, form: Json) -> DocumentSchema:
        return DocumentSchema.of_json_schema(_DOCUMENT, "", form["definitions"]["document"])


def _ignore(namespace: str, number: int, schema: DocumentSchema) -> None:
    """Stand for nobody who wants to know."""


def _rest(document: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Give documentKey, updateDescription and operationDescription as canonical Extended JSON."""
    names = ("documentKey", "updateDescription", "operationDescription")
    found = (document.get(name) for name in names)
    key, update, description = (None if part is None else extended_json.canonical(part).decode() for part in found)
    return key, update, description


class RegisteredDecoder(RecordDecoder):
    """Reads what the head of an envelope tells; documents are for the consumers of the registry."""

    has_documents = False
    has_events = False

    def _event(self, record: KafkaRecord) -> ReadEvent | None:
        raise EventUnconvertible(
            f"documents of the format {self.name} are read with the schema registry, by consumers of it",
            hint="Use Spark's from_avro, or a format that the jobs read: json, canonical, bson, flat or debezium.",
        )

    def _state_of(self, key: bytes, namespace: str, operation: str) -> StoredRecord:
        found = extended_json.loads(key)
        has_id = isinstance(found, dict) and "_id" in found
        return StoredRecord(namespace, operation, found if has_id else None)


class AvroDecoder(RegisteredDecoder):
    """Reads the heads of `avro`: the operation and the namespace come first."""

    name = "avro"

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        operation, at = _text_at(value, _HEAD.size)
        namespace, _ = _text_at(value, at)
        return self._state_of(key, namespace, operation)


class JsonSchemaDecoder(RegisteredDecoder):
    """Reads the heads of `jsonschema`."""

    name = "jsonschema"

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        envelope = orjson.loads(value[_HEAD.size :])
        return self._state_of(key, envelope["ns"], envelope["operationType"])


def _text_at(value: bytes, at: int) -> tuple[str, int]:
    """Read a string of Avro; give it, and where it ends."""
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    length = number >> 1
    return value[at : at + length].decode(), at + length
