"""What every format does, run over all of them with the events of a real server."""

from __future__ import annotations

import sys
import types
from typing import Any

import bson
import pytest
from bson import Int64, Timestamp, json_util
from pymongo.database import Database

from schema_keeping import KeepingRegistry
from tailrace.capture.formats import Format, make_format, recovered_delete, snapshot_event
from tailrace.errors import EventUnconvertible, SettingsError

TOKEN = bson.encode({"_data": "8265F0A1B2000000072B0229296E04"})
NAMES = ("json", "canonical", "bson", "flat", "debezium", "cloudevents", "avro", "jsonschema", "users_formats:upper")

CONTENT_TYPE = {"content-type": b"application/cloudevents+json; charset=UTF-8"}


@pytest.fixture(autouse=True)
def users_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a user with functions to write events."""
    module = types.ModuleType("users_formats")
    module.upper = lambda event: {"OP": event["operationType"].upper(), "at": event["clusterTime"]}  # type: ignore[attr-defined]
    module.only_inserts = lambda event: b"raw" if event["operationType"] == "insert" else None  # type: ignore[attr-defined]
    module.broken = lambda event: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_formats", module)


def made(name: str, **options: Any) -> Format:
    registry = KeepingRegistry() if name in ("avro", "jsonschema") else None
    return make_format(name, fields=["user_id", "to.city", "price", "tags"], registry=registry, **options)


def key_of(name: str, data: bytes | None) -> Any:
    """Read a key back, whatever it is written in."""
    assert data is not None
    return bson.decode(data) if name == "bson" else json_util.loads(data)


@pytest.mark.parametrize("name", NAMES)
def test_every_event_of_a_document_becomes_a_record_with_its_headers(name: str, events: dict[str, bytes]) -> None:
    for label in ("insert", "update", "replace", "delete", "update with images", "delete with image"):
        event = events[label]
        decoded = bson.decode(event)
        record = made(name).records(event)[0]
        headers = dict(record.headers)
        assert record.namespace == f"{decoded['ns']['db']}.{decoded['ns']['coll']}"
        assert record.operation == decoded["operationType"]
        assert record.cluster_time == decoded["clusterTime"].time << 32 | decoded["clusterTime"].inc
        assert bson.decode(record.token) == decoded["_id"]
        assert record.event is event
        assert headers == {
            "token": decoded["_id"]["_data"].encode(),
            "clusterTime": b"%d:%d" % (decoded["clusterTime"].time, decoded["clusterTime"].inc),
            "operationType": decoded["operationType"].encode(),
            "schemaVersion": b"1",
            **({"image": b"delta" if label == "update" else b"post"} if record.operation == "update" else {}),
            **(CONTENT_TYPE if name == "cloudevents" else {}),
        }
        expected = {"id": str(decoded["documentKey"]["_id"])} if name == "debezium" else decoded["documentKey"]
        assert key_of(name, record.key) == expected
        assert record.value


@pytest.mark.parametrize("name", NAMES)
def test_a_document_of_a_snapshot_becomes_a_record_of_the_operation_read(name: str) -> None:
    document = bson.encode({"_id": 5, "user_id": 7, "price": 1})
    event = snapshot_event("shop.orders", document, TOKEN, Timestamp(0x65F0A1B2, 7))
    (record,) = made(name).records(event)
    assert (record.namespace, record.operation) == ("shop.orders", "read")
    assert record.cluster_time == 0x65F0A1B200000007
    assert record.value
    if name in ("json", "canonical", "flat", "debezium"):
        value = json_util.loads(record.value)
        assert value["op"] == "r"
        assert "5" in json_util.dumps(value)
    if name == "bson":
        assert bson.decode(record.value)["fullDocument"] == {"_id": 5, "user_id": 7, "price": 1}


@pytest.mark.parametrize("name", NAMES)
def test_a_recovered_delete_says_so(name: str) -> None:
    event = recovered_delete("shop.orders", bson.encode({"_id": 5}), TOKEN, Timestamp(0x65F0A1B2, 7))
    record = made(name).records(event)[0]
    assert record.operation == "delete"
    assert dict(record.headers)["recovered"] == b"true"


@pytest.mark.parametrize("name", NAMES)
def test_tombstones_follow_deletes_with_the_same_key_when_they_are_wanted(name: str, events: dict[str, bytes]) -> None:
    for label, event in events.items():
        with_tombstones = made(name, tombstones=True).records(event)
        assert len(made(name, tombstones=False).records(event)) <= 1
        if label.startswith("delete"):
            deleted, tombstone = with_tombstones
            assert (tombstone.key, tombstone.value, tombstone.token) == (deleted.key, None, deleted.token)
            assert deleted.value is not None
        else:
            assert all(record.value is not None for record in with_tombstones)


@pytest.mark.parametrize("name", NAMES)
def test_a_field_of_the_document_as_key(name: str, events: dict[str, bytes]) -> None:
    format = made(name, key_field="user_id")
    by_field = {"insert": 7, "replace": 8, "update with images": 9, "delete with image": 9}
    for label, user in by_field.items():
        record = format.records(events[label])[0]
        assert key_of(name, record.key) == {"user_id": str(user) if name == "debezium" else user}
        assert "key" not in dict(record.headers)
    for label in ("update", "delete"):
        record = format.records(events[label])[0]
        assert record.key == made(name).records(events[label])[0].key
        assert dict(record.headers)["key"] == b"documentKey"


@pytest.mark.parametrize("name", NAMES)
def test_an_event_about_a_collection_is_keyed_by_its_namespace(name: str, events: dict[str, bytes]) -> None:
    records = made(name).records(events["drop"])
    if name == "debezium":  # whose connector knows documents only
        assert list(records) == []
        return
    ns = bson.decode(events["drop"])["ns"]
    assert [key_of(name, record.key) for record in records] == [{"ns": ns}]


@pytest.mark.parametrize("name", NAMES)
def test_an_update_says_how_much_its_document_is_worth(
    name: str, events: dict[str, bytes], database: Database[dict[str, Any]]
) -> None:
    """A document that was looked up may be newer than the event, or gone, which is no delete."""
    looking_up = made(name, looks_up=True)
    assert dict(looking_up.records(events["update with images"])[0].headers)["image"] == b"lookup"
    assert dict(looking_up.records(events["update"])[0].headers)["image"] == b"delta"
    with database.gone.watch(full_document="updateLookup") as stream:
        database.gone.insert_one({"_id": 1})
        database.gone.update_one({"_id": 1}, {"$set": {"n": 1}})
        database.gone.delete_one({"_id": 1})
        update = next(event for event in stream if event["operationType"] == "update")
    assert update["fullDocument"] is None
    (record,) = looking_up.records(bson.encode(update))
    assert (record.operation, dict(record.headers)["image"]) == ("update", b"missing")


@pytest.mark.parametrize("name", NAMES)
def test_bytes_that_are_no_event_are_refused_with_an_error_of_ours(name: str, events: dict[str, bytes]) -> None:
    truncated = events["insert"][:-20]
    with pytest.raises(EventUnconvertible):
        made(name).records(truncated)


@pytest.mark.parametrize("name", NAMES)
def test_an_event_of_a_transaction_of_an_old_server_is_carried(name: str, events: dict[str, bytes]) -> None:
    """There the token is not the first field, and its place is not changed."""
    fields = bson.decode(events["insert"])
    event = bson.encode({"outer": {"txnNumber": Int64(1), "lsid": {"id": 1}, **fields}})[11:-1]
    (record,) = made(name).records(event)
    assert "unrepresentable" not in dict(record.headers)
    if name in ("json", "canonical"):
        assert (record.value or b"").startswith(b'{"txnNumber":')


@pytest.mark.parametrize("name", [name for name in NAMES if name != "debezium"])  # its records say when they were made
def test_many_events_at_once_give_the_records_of_each(name: str, recorded: list[bytes]) -> None:
    format, good = made(name), []
    for event in recorded:
        try:
            format.records(event)
            good.append(event)
        except EventUnconvertible:
            with pytest.raises(EventUnconvertible):
                format.batch([*good[:3], event])
    assert list(format.batch(good)) == [record for event in good for record in format.records(event)]
    assert not format.batch([])


def test_a_users_function_may_leave_events_out_and_write_bytes(events: dict[str, bytes]) -> None:
    format = made("users_formats:only_inserts")
    assert [record.value for record in format.records(events["insert"])] == [b"raw"]
    assert format.records(events["update"]) == ()


def test_a_users_function_that_fails_makes_the_event_unconvertible(events: dict[str, bytes]) -> None:
    with pytest.raises(EventUnconvertible, match="ZeroDivisionError"):
        made("users_formats:broken").records(events["insert"])


@pytest.mark.parametrize("name", ["avro", "users_formats:nothing", "no_such_module:x"])
def test_a_format_that_does_not_exist_is_a_wrong_setting(name: str) -> None:
    with pytest.raises(SettingsError):
        make_format(name)
