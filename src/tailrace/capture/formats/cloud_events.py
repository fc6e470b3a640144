"""Events as CloudEvents 1.0, structured: the event of the format `json` in an envelope that other tools know."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import orjson

from tailrace.capture.formats.format import DOCUMENT_KEY, KeyRule
from tailrace.capture.formats.json import JsonDecoder, JsonFormat
from tailrace.capture.formats.stored_records import KafkaRecord, ReadEvent, StoredRecord
from tailrace.capture.record import Record
from tailrace.raw.cluster_time import ClusterTime

TYPE_PREFIX: Final = "com.mongodb.changestream."
_CONTENT_TYPE: Final = ("content-type", b"application/cloudevents+json; charset=UTF-8")


class CloudEventsFormat(JsonFormat):
    """Puts the records of `json` into envelopes; `id` is the resume token, so that a repeated event is known by it."""

    content_type = "application/cloudevents+json"

    def __init__(self, source: str, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        super().__init__(key, tombstones=tombstones)
        self._source = source

    def _delivered(self, record: Record) -> Sequence[Record]:
        return [self._wrapped(each) for each in super()._delivered(record)]

    def _wrapped(self, record: Record) -> Record:
        if record.value is None:
            return record
        headers = dict(record.headers)
        envelope = orjson.dumps(
            {
                "specversion": "1.0",
                "id": headers["token"].decode(),
                "source": f"{self._source}/{record.namespace}",
                "type": f"{TYPE_PREFIX}{record.operation}",
                "subject": (record.key or b"").decode(),
                "time": _time(headers["clusterTime"]),
                "datacontenttype": "application/json",
            }
        )
        value = b"".join([envelope[:-1], b',"data":', record.value, b"}"])
        return record._replace(value=value, headers=[*record.headers, _CONTENT_TYPE])


def _time(text: bytes) -> str:
    at = datetime.fromtimestamp(ClusterTime.from_text(text).seconds, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


class CloudEventsDecoder(JsonDecoder):
    """Reads `cloudevents`: what is in the envelope is `json`."""

    name = "cloudevents"
    is_whole_in_value = False

    def _state(self, key: bytes, value: bytes) -> StoredRecord:
        """Give what a record says of the state."""
        return super()._state(key, orjson.dumps(orjson.loads(value)["data"]))

    def _event(self, record: KafkaRecord) -> ReadEvent:
        inner = orjson.loads(record.value)["data"]
        return super()._event(record._replace(value=orjson.dumps(inner)))
