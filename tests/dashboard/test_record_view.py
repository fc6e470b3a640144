"""A line can be made of the records of every format, from the bytes that the formats really write."""

from __future__ import annotations

from datetime import UTC, datetime

import bson
import pytest
from bson import ObjectId, Timestamp

from tailrace import raw
from tailrace.capture.formats import make_format
from tailrace.dashboard.record_view import as_json, key_of, namespace_of, short, summary_of, wall_time_of
from tailrace.dashboard.sources.change_stream import observed
from tailrace.token import ResumeToken, TokenData, TokenKind

MOMENT = datetime(2026, 5, 1, 12, 0, 0, 250_000, UTC)
KEY = ObjectId("65f000000000000000000001")


def event(operation: str, **fields: object) -> bytes:
    data = TokenData(
        Timestamp(1_777_636_800, 3), 1, TokenKind.EVENT, uuid=bytes(16), event_identifier=bson.encode({"_id": KEY})
    )
    return bson.encode(
        {
            "_id": {"_data": ResumeToken.encode(data).hex},
            "operationType": operation,
            "clusterTime": Timestamp(1_777_636_800, 3),
            "wallTime": MOMENT,
            "ns": {"db": "shop", "coll": "orders"},
            "documentKey": {"_id": KEY},
            **fields,
        }
    )


INSERT = event("insert", fullDocument={"_id": KEY, "user": 42, "city": "Bergen"})
UPDATE = event("update", updateDescription={"updatedFields": {"city": "Oslo"}, "removedFields": ["note"]})


def record(name: str, event: bytes) -> tuple[bytes | None, bytes]:
    made = make_format(name, fields=("user", "city")) if name == "flat" else make_format(name)
    first = made.records(event)[0]
    assert first.value is not None
    return first.key, first.value


@pytest.mark.parametrize("name", ["json", "canonical", "bson", "flat", "debezium"])
def test_every_format_tells_namespace_time_key_and_what_changed(name: str) -> None:
    key, value = record(name, INSERT)
    shown = as_json(value)
    assert namespace_of(shown) == "shop.orders"
    assert wall_time_of(shown) == MOMENT.timestamp()
    assert str(KEY) in key_of(key)
    assert "city=Bergen" in summary_of(shown)


@pytest.mark.parametrize("name", ["json", "canonical", "bson"])
def test_an_update_shows_the_fields_it_set_and_removed(name: str) -> None:
    _, value = record(name, UPDATE)
    assert summary_of(as_json(value)) == "city=Oslo  -note"


def test_a_delete_and_a_tombstone_have_nothing_to_show() -> None:
    _, value = record("json", event("delete"))
    assert summary_of(as_json(value)) == ""
    assert as_json(b"") is None


def test_bytes_of_no_format_are_shown_as_they_are() -> None:
    assert as_json(b"\xff\x00\x01") == {"base64": "/wAB"}
    assert namespace_of(as_json(b"[1]")) is None
    assert summary_of(7) == ""
    assert wall_time_of(None) is None


def test_records_of_documents_that_drivers_refuse_are_shown() -> None:
    odd = raw.document(
        raw.element(raw.STRING, b"city", raw.string(b"\xff")), raw.element(raw.BINARY, b"id", raw.binary(4, b"abc"))
    )
    inserted = raw.append(raw.without(INSERT, b"fullDocument"), raw.element(raw.DOCUMENT, b"fullDocument", odd))
    _, value = record("bson", inserted)
    assert as_json(value)["fullDocument"]["city"] == "\ufffd"
    assert observed(inserted).line.namespace == "shop.orders"


def test_long_values_are_cut() -> None:
    assert len(short("x" * 100)) == 40
    assert len(summary_of({"fullDocument": {f"field{number}": "x" * 50 for number in range(20)}})) == 160
