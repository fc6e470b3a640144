"""Events as JSON under a JSON Schema of a registry, and what can be read back of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tailrace.capture.formats.document_schema import DocumentSchema, Json
from tailrace.capture.formats.registered import (
    DOCUMENT,
    ENVELOPE,
    HEAD,
    IMAGES,
    MARK,
    RegisteredDecoder,
    RegisteredFormat,
    rest_of,
)
from tailrace.capture.formats.stored_records import StoredRecord
from tailrace.event import ChangeEvent


class JsonSchemaFormat(RegisteredFormat):
    """The envelope as JSON."""

    kind = "JSON"
    content_type = "application/json"

    def _written(self, document: Mapping[str, Any], view: ChangeEvent, schema: DocumentSchema) -> bytes:
        before, after = (None if document.get(part) is None else schema.plain(document[part]) for part in IMAGES)
        key, update, description = rest_of(document)
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

    def _loss(self, document: Mapping[str, Any], view: ChangeEvent, value: bytes) -> str | None:
        schema = self.schema_of(view.namespace)
        lost = (loss for part in IMAGES if document.get(part) for loss in schema.losses(document[part]))
        return super()._loss(document, view, value) or next(lost, None)

    def _schema(self, namespace: str, schema: DocumentSchema) -> Json:
        text = {"anyOf": [{"type": "null"}, {"type": "string"}]}
        documents = {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/document"}]}
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": ENVELOPE,
            MARK: 1,
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
        return DocumentSchema.of_json_schema(DOCUMENT, form["definitions"]["document"])


class JsonSchemaDecoder(RegisteredDecoder):
    """Reads the heads of `jsonschema`."""

    name = "jsonschema"

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        envelope = orjson.loads(value[HEAD.size :])
        return self._state_of(key, envelope["ns"], envelope["operationType"])
