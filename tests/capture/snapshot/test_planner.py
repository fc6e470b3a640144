from __future__ import annotations

import datetime
import uuid
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.binary import Binary, UuidRepresentation
from pymongo.database import Database

from tailrace.capture.snapshot import KeyCheck, plan_collection
from tailrace.capture.snapshot.chunk import bounds_from_json, bounds_to_json
from tailrace.capture.snapshot.reading import ChunkReader, watermark

ODD_IDS: list[Any] = [
    MinKey(), MaxKey(), None, True, False, 1, 2.5, Int64(3), Decimal128("4.25"), float("nan"), "", "a", {"x": 1}, {},
    b"bytes", Binary.from_uuid(uuid.UUID(int=7), UuidRepresentation.STANDARD), datetime.datetime(2020, 1, 1),
    Timestamp(1, 1),
]  # fmt: skip


def fill(database: Database[dict[str, Any]], each: int = 800) -> set[bytes]:
    many: list[Any] = [ObjectId() for _ in range(each)]
    many += [number + 100 for number in range(each)] + [f"s{number}" for number in range(each)]
    many += [{"nested": number} for number in range(each)]
    database.mixed.insert_many([{"_id": value, "payload": "x" * 200} for value in ODD_IDS + many])
    return {bson.encode({"_id": value}) for value in ODD_IDS + many}


@pytest.mark.mongodb("4.2.6", "6.0.5", pytest.param("7.0.28", marks=pytest.mark.long))
def test_chunks_hold_every_document_of_every_type_exactly_once(database: Database[dict[str, Any]]) -> None:
    expected = fill(database)
    namespace = f"{database.name}.mixed"
    chunks = plan_collection(database.client, namespace, chunk_bytes=40_000)
    assert len(chunks) > 5
    reader, now = ChunkReader(database.client), watermark(database.client)
    found = [bson.encode({"_id": bson.decode(row)["_id"]}) for each in chunks for row in reader.documents(each, now)]
    assert len(found) == len(expected)
    assert set(found) == expected


@pytest.mark.mongodb("4.2.6", "6.0.5", pytest.param("7.0.28", marks=pytest.mark.long))
def test_keys_that_are_gone_become_deletes(database: Database[dict[str, Any]]) -> None:
    keys = fill(database, each=3)
    namespace = f"{database.name}.mixed"
    gone = {bson.encode({"_id": value}) for value in (MaxKey(), "a", {"nested": 1}, 101)}
    database.mixed.delete_many({"_id": {"$in": [MaxKey(), "a", {"nested": 1}, 101]}})
    reader = ChunkReader(database.client)
    events = reader.deletes(KeyCheck(namespace, tuple(keys)), watermark(database.client))
    assert {bson.encode(bson.decode(event)["documentKey"]) for event in events} == gone
    assert all(bson.decode(event)["recovered"] is True for event in events)


def test_a_chunk_is_read_as_of_its_watermark(database: Database[dict[str, Any]]) -> None:
    database.mixed.insert_many([{"_id": number, "state": "before"} for number in range(100)])
    namespace = f"{database.name}.mixed"
    (chunk,) = plan_collection(database.client, namespace)
    at = watermark(database.client)
    database.mixed.update_many({}, {"$set": {"state": "after"}})
    database.mixed.delete_many({"_id": {"$lt": 50}})
    events = [bson.decode(event) for event in ChunkReader(database.client).events(chunk, at)]
    assert [event["fullDocument"]["state"] for event in events] == ["before"] * 100
    assert {event["clusterTime"] for event in events} == {at}


def test_an_empty_collection_has_one_empty_chunk(database: Database[dict[str, Any]]) -> None:
    database.create_collection("mixed")
    (chunk,) = plan_collection(database.client, f"{database.name}.mixed")
    assert list(ChunkReader(database.client).documents(chunk, watermark(database.client))) == []


def test_bounds_keep_their_types_in_the_store() -> None:
    bounds = [bson.encode({"_id": value}) for value in ODD_IDS if value == value]
    assert bounds_from_json(bounds_to_json(bounds)) == bounds
