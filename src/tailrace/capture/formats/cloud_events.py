"""Events as CloudEvents 1.0, structured: the event of the format `json` in an envelope that other tools know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import orjson

from tailrace.capture.formats.format import DOCUMENT_KEY, RECOVERED_HEADER, KeyRule
from tailrace.capture.formats.json import JsonDecoder, JsonFormat
from tailrace.capture.formats.made_events import READ
from tailrace.capture.formats.stored_records import KafkaRecord, ReadEvent, StoredRecord
from tailrace.capture.record import Record
from tailrace.event import ChangeEvent
from tailrace.raw import extended_json
from tailrace.raw.cluster_time import ClusterTime

TYPE_PREFIX: Final = "com.mongodb.changestream."
_CONTENT_TYPE: Final = ("content-type", b"application/cloudevents+json; charset=UTF-8")
_BESIDE_UNRESERVED: Final = "/:@!$&'()*+,;=%"
_not_encoding = re.compile("%(?![0-9A-Fa-f]{2})")
_begins_with_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match
_noncharacters = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_not_in_attributes = re.compile(f"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_noncharacters}]")


class CloudEventsFormat(JsonFormat):
    """Puts the records of `json` into envelopes, by whose `id` and `source` a repeated event is known.

    `id` is the resume token. The documents of a snapshot share the token of the position that they were read after, as
    do the deletes of a recovery; behind it they have operation and documentKey, the same whenever they are sent again.
    """

    content_type = "application/cloudevents+json"

    def __init__(self, source: str, key: KeyRule = DOCUMENT_KEY, *, tombstones: bool = False) -> None:
        super().__init__(key, tombstones=tombstones)
        self.source = _uri_reference(source)
        """What `source` begins with; the namespace follows."""

    def _delivered(self, record: Record) -> Sequence[Record]:
        return [self._wrapped(each) for each in super()._delivered(record)]

    def _wrapped(self, record: Record) -> Record:
        if record.value is None:
            return record
        headers = dict(record.headers)
        envelope = orjson.dumps(
            {
                "specversion": "1.0",
                "id": _id(record, headers["token"].decode()),
                "source": f"{self.source}/{quote(record.namespace, safe='')}",
                "type": f"{TYPE_PREFIX}{record.operation}",
                "subject": _attribute((record.key or b"").decode()),
                "time": _time(headers["clusterTime"]),
                "datacontenttype": "application/json",
            }
        )
        value = b"".join([envelope[:-1], b',"data":', record.value, b"}"])
        return record._replace(value=value, headers=[*record.headers, _CONTENT_TYPE])


def _id(record: Record, token: str) -> str:
    if record.operation != READ and RECOVERED_HEADER not in record.headers:
        return token
    key = ChangeEvent(record.event).document_key
    parts = [token, record.operation]
    if key is not None:
        parts.append(_attribute(extended_json.relaxed(extended_json.decode(key), key).decode()))
    return "/".join(parts)


def _attribute(text: str) -> str:
    """Escape in a JSON text the characters that attributes must not have."""
    return _not_in_attributes.sub(lambda found: "".join(_escapes(found[0])), text)


def _escapes(character: str) -> list[str]:
    units = character.encode("utf-16-be")
    return [f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)]


def _uri_reference(text: str) -> str:
    """Give a text as what a URI reference begins with; one that is a URI stays as it is."""
    found = quote(_not_encoding.sub("%25", text), safe=_BESIDE_UNRESERVED)
    if _begins_with_scheme(found):
        return found
    first, slash, rest = found.partition("/")
    return f"{first.replace(':', '%3A')}{slash}{rest}"


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
