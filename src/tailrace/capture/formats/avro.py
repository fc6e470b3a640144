"""Events as Avro under a schema of a registry, and what can be read back of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tailrace.capture.formats.avro_binary import write_bytes, write_long
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
from tailrace.raw.cluster_time import ClusterTime

_TEXT: Final = ["null", "string"]


class AvroFormat(RegisteredFormat):
    """The envelope in Avro's binary form."""

    kind = "AVRO"
    content_type = "application/vnd.apache.avro"

    def _written(self, document: Mapping[str, Any], view: ChangeEvent, schema: DocumentSchema) -> bytes:
        out = bytearray()
        write_bytes(view.operation_type.encode(), out)
        write_bytes(view.namespace.encode(), out)
        write_long(_as_long(view.token_time), out)
        for part in IMAGES:
            found = document.get(part)
            if found is None:
                out.append(0)
            else:
                out.append(2)
                schema.write(found, out)
        for text in rest_of(document):
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
            {"name": "after", "type": ["null", DOCUMENT], "default": None},
            {"name": "documentKey", "type": _TEXT, "default": None},
            {"name": "updateDescription", "type": _TEXT, "default": None},
            {"name": "description", "type": _TEXT, "default": None},
        ]
        return {"type": "record", "name": ENVELOPE, "namespace": "tailrace", MARK: 1, "fields": fields}

    def _read(self, form: Json) -> DocumentSchema:
        before = next(each for each in form["fields"] if each["name"] == "before")
        return DocumentSchema.of_avro(before["type"][1])


def _as_long(time: ClusterTime) -> int:
    """Give a time as the signed number that Avro has: the same 64 bits, negative from January 2038 on."""
    return int(time) - (int(time) >> 63 << 64)


class AvroDecoder(RegisteredDecoder):
    """Reads the heads of `avro`: the operation and the namespace come first."""

    name = "avro"

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        operation, at = _text_at(value, HEAD.size)
        namespace, _ = _text_at(value, at)
        return self._state_of(key, namespace, operation)


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
