"""The two shapes that are ours to make: flat records, and the envelope that Debezium's consumers expect."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import bson
import orjson
from bson import ObjectId, Timestamp, json_util

from tailrace.capture.formats import Format, make_format, snapshot_event

TOKEN = bson.encode({"_data": "8265F0A1B2000000072B0229296E04"})


def flat(event: bytes) -> dict[str, Any]:
    format = make_format("flat", fields=["user_id", "to.city", "price", "tags"])
    return dict(orjson.loads(format.records(event)[0].value or b""))


def debezium() -> Format:
    format = make_format("debezium", server_name="shop")
    format._clock = lambda: 1_700_000_000_123_456_789  # type: ignore[attr-defined]
    return format


def envelope(event: bytes) -> dict[str, Any]:
    return dict(orjson.loads(debezium().records(event)[0].value or b""))


def test_flat_records_have_the_chosen_fields_on_one_level(events: dict[str, bytes]) -> None:
    inserted, decoded = flat(events["insert"]), bson.decode(events["insert"])
    cluster_time = decoded["clusterTime"]
    assert inserted == {
        "op": "c",
        "ns": f"{decoded['ns']['db']}.orders",
        "key": 1,
        "cluster_time": cluster_time.time << 32 | cluster_time.inc,
        "ts_ms": int(decoded["wallTime"].replace(tzinfo=UTC).timestamp() * 1000),
        "image": "full",
        "user_id": 7,
        "to.city": "Bonn",
        "price": 9.5,
        "tags": ["a" * 60, "b" * 60, "c" * 60],
    }


def test_flat_updates_without_image_have_what_changed(events: dict[str, bytes]) -> None:
    updated = flat(events["update"])
    assert (updated["op"], updated["image"]) == ("u", "delta")
    assert (updated["price"], updated["to.city"], updated["user_id"]) == (10, "Köln", None)
    assert "tags" not in updated  # it was truncated: what is left is not in the event


def test_flat_updates_and_deletes_with_images_have_the_document(events: dict[str, bytes]) -> None:
    updated = flat(events["update with images"])
    assert (updated["image"], updated["user_id"], updated["price"], updated["to.city"]) == ("full", 9, 3, None)
    deleted = flat(events["delete with image"])
    assert (deleted["op"], deleted["image"], deleted["user_id"]) == ("d", "before", 9)
    assert flat(events["delete"])["image"] == "none"


def test_flat_values_lose_their_bson_types() -> None:
    values = {"_id": ObjectId(b"123456789012"), "user_id": bson.Int64(2**60), "price": bson.Decimal128("1.10")}
    document = bson.encode({**values, "to": {"city": b"ab"}, "tags": [Timestamp(1, 2), bson.Code("f")]})
    record = flat(snapshot_event("shop.orders", document, TOKEN, Timestamp(9, 9)))
    assert record["key"] == "313233343536373839303132"
    assert (record["user_id"], record["price"], record["to.city"]) == (2**60, "1.10", "YWI=")
    assert record["tags"] == [1 << 32 | 2, "f"]


def test_the_envelope_has_the_fields_of_debezium(events: dict[str, bytes]) -> None:
    inserted, decoded = envelope(events["insert"]), bson.decode(events["insert"])
    time = decoded["clusterTime"]
    assert list(inserted) == [
        "before", "after", "updateDescription", "source", "op", "ts_ms", "transaction",
    ]  # fmt: skip
    assert (inserted["op"], inserted["before"], inserted["updateDescription"]) == ("c", None, None)
    assert inserted["ts_ms"] == 1_700_000_000_123
    assert json_util.loads(inserted["after"]) == decoded["fullDocument"]
    source = inserted["source"]
    assert list(source) == [
        "version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "collection", "ord",
        "lsid", "txnNumber", "wallTime",
    ]  # fmt: skip
    assert (source["connector"], source["name"], source["snapshot"]) == ("mongodb", "shop", "false")
    assert (source["db"], source["collection"]) == (decoded["ns"]["db"], "orders")
    wall = int(decoded["wallTime"].replace(tzinfo=UTC).timestamp() * 1000)
    assert (source["ts_ms"], source["ts_ns"], source["ord"]) == (wall, wall * 1_000_000, time.inc)


def test_an_update_has_its_description_and_images_if_there_are_any(events: dict[str, bytes]) -> None:
    updated = envelope(events["update"])
    assert (updated["op"], updated["before"], updated["after"]) == ("u", None, None)
    description = updated["updateDescription"]
    assert json_util.loads(description["updatedFields"]) == {"price": 10, "to.city": "Köln"}
    assert description["removedFields"] == ["user_id"]
    assert description["truncatedArrays"] == [{"field": "tags", "size": 1}]
    with_images = envelope(events["update with images"])
    assert json_util.loads(with_images["before"]) == {"_id": 2, "user_id": 9}
    assert json_util.loads(with_images["after"]) == {"_id": 2, "user_id": 9, "price": 3}


def test_a_delete_has_the_image_before_and_is_followed_by_a_tombstone(events: dict[str, bytes]) -> None:
    deleted, tombstone = debezium().records(events["delete with image"])
    value = orjson.loads(deleted.value or b"")
    assert (value["op"], value["after"]) == ("d", None)
    assert json_util.loads(value["before"]) == {"_id": 2, "user_id": 9, "price": 3}
    assert (tombstone.key, tombstone.value) == (deleted.key, None)


def test_keys_and_documents_are_spelt_as_debezium_spells_them() -> None:
    """Facts of Debezium 3: keys are relaxed, documents strict Extended JSON, both inside strings."""
    document = bson.encode({"_id": ObjectId(b"123456789012"), "n": bson.Int64(5), "when": bson.DatetimeMS(1500)})
    (record,) = debezium().records(snapshot_event("shop.orders", document, TOKEN, Timestamp(9, 9)))
    assert record.key == b'{"id":"{\\"$oid\\": \\"313233343536373839303132\\"}"}'
    value = orjson.loads(record.value or b"")
    assert value["after"] == (
        '{"_id": {"$oid": "313233343536373839303132"},"n": {"$numberLong": "5"},"when": {"$date": 1500}}'
    )
    assert (value["op"], value["source"]["snapshot"]) == ("r", "true")


def test_a_string_as_id_is_quoted_inside_the_key() -> None:
    event = snapshot_event("shop.orders", bson.encode({"_id": "MyKey"}), TOKEN, Timestamp(9, 9))
    assert debezium().records(event)[0].key == b'{"id":"\\"MyKey\\""}'
