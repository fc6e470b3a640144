"""Events under a schema of a registry: what `avro` and `jsonschema` have in common.

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

from tailrace.capture.formats.document_schema import DocumentSchema, Json, Unfit
from tailrace.capture.formats.format import DOCUMENT_KEY, DecodedFormat, KeyRule, losses_of
from tailrace.capture.formats.registry import Incompatible, SchemaRegistry
from tailrace.capture.formats.stored_records import KafkaRecord, ReadEvent, RecordDecoder, StoredRecord
from tailrace.errors import EventUnconvertible, SchemaDrifted, SettingsError
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json

ENVELOPE: Final = "Envelope"
DOCUMENT: Final = "Document"
MARK: Final = "tailrace"
"""A property of every schema made here: others are not continued."""
HEAD: Final = struct.Struct(">bI")
"""What a value begins with: a zero byte and the id of its schema."""


_Paths = frozenset[tuple[str, str]]
_MOST_REFUSED: Final = 1_000
_MOST_SHOWN: Final = 3
IMAGES: Final = ("fullDocumentBeforeChange", "fullDocument")


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
                return HEAD.pack(0, subject.id) + self._written(document, view, subject.schema)
            except Unfit:
                self._renew(namespace, subject)
        return self._grown(document, view, subject)

    def schema_of(self, namespace: str) -> DocumentSchema:
        """Give the schema of a namespace of which something was written."""
        return self._subjects[namespace].schema

    def _renew(self, namespace: str, subject: _Subject) -> None:
        """Take over what another process has made of the schema meanwhile."""
        found = self._registry.latest(self._subject_of(namespace))
        if found is not None and found[0] != subject.id:
            subject.id, subject.schema = found[0], self._continued(self._subject_of(namespace), found[1])
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
            opened = _Subject(None, DocumentSchema(DOCUMENT))
        else:
            opened = _Subject(found[0], self._continued(name, found[1]))
            self.learned(namespace, found[0], opened.schema)
        self._subjects[namespace] = opened
        return opened

    def _continued(self, name: str, text: str) -> DocumentSchema:
        """Read the schema of a subject; one that this format has not made is not continued."""
        try:
            form = orjson.loads(text)
            if form[MARK]:
                return self._read(form)
        except (ValueError, TypeError, LookupError, AttributeError, StopIteration, RecursionError):
            pass
        raise SettingsError(
            f"the subject {name} has a schema that tailrace has not made, or not in this format",
            hint="Choose another capture.topic_prefix, or delete the subject.",
        )

    def _grown(self, document: Mapping[str, Any], view: ChangeEvent, subject: _Subject) -> bytes:
        """Let the schema grow by a document, if the registry agrees."""
        images = [document.get(part) or {} for part in IMAGES]
        paths = frozenset(path for image in images for path in subject.schema.unfit(image))
        if not paths and subject.id is not None:
            return HEAD.pack(0, subject.id) + self._written(document, view, subject.schema)
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
        return HEAD.pack(0, number) + value

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


def _ignore(namespace: str, number: int, schema: DocumentSchema) -> None:
    """Stand for nobody who wants to know."""


def rest_of(document: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
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
