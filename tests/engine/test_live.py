"""The engine over a live replica set, beside the server's own change streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient, WriteConcern
from pymongo.database import Database

from tailrace.engine.live import OplogChangeStream, watch_oplog
from tailrace.errors import StreamRefused
from tailrace.stand import ReplicaSet

RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)
PATIENCE = 60.0
"""Seconds after which a test gives up waiting for events."""
VERSIONS = ("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27", "7.0.28")


def operation_time(client: MongoClient[Any]) -> Timestamp:
    return client.admin.command("ping")["operationTime"]


def after(time: Timestamp) -> Timestamp:
    return Timestamp(time.time, time.inc + 1)


def engine_events(stream: OplogChangeStream, count: int) -> list[bytes]:
    """Read until `count` events are there; the stream waits for them itself."""
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and stream.alive and time.monotonic() < deadline:
        found += stream.next_batch().events
    return found


def server_events(database: Database[Any], count: int, **options: Any) -> list[bytes]:
    """Read the same from the server's own change stream."""
    found: list[bytes] = []
    with database.with_options(codec_options=RAW).watch(max_await_time_ms=200, **options) as stream:  # type: ignore[arg-type]
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and stream.alive and time.monotonic() < deadline:
            event = stream.try_next()
            if event is not None:
                found.append(bytes(event.raw))
    return found


def change_everything(database: Database[Any]) -> None:
    orders = database.get_collection("orders", write_concern=WriteConcern("majority"))
    orders.insert_many([{"_id": n, "n": {"x": n}, "list": [1, 2, 3]} for n in range(5)])
    orders.update_one({"_id": 1}, {"$set": {"n.x": 9}, "$push": {"list": 4}})
    orders.update_one({"_id": 2}, [{"$set": {"list": [1]}}])
    orders.replace_one({"_id": 3}, {"other": True})
    orders.delete_one({"_id": 4})
    with database.client.start_session() as session, session.start_transaction():
        database.orders.insert_one({"_id": "t"}, session=session)
        database.orders.update_one({"_id": "t"}, {"$set": {"a": 1}}, session=session)


@pytest.mark.mongodb(*VERSIONS)
def test_events_are_those_of_the_server(database: Database[Any]) -> None:
    start = after(operation_time(database.client))
    change_everything(database)
    expected = server_events(database, 11, start_at_operation_time=start, full_document="updateLookup")
    assert len(expected) == 11
    with watch_oplog(database, start_at_operation_time=start, full_document="updateLookup") as stream:
        assert engine_events(stream, 11) == expected


def test_a_program_may_move_between_server_and_engine_at_any_event(database: Database[Any]) -> None:
    start = after(operation_time(database.client))
    change_everything(database)
    expected = server_events(database, 11, start_at_operation_time=start)
    for n in (0, 8, 9):
        token = bson.decode(expected[n])["_id"]
        with watch_oplog(database, resume_after=token) as stream:
            assert engine_events(stream, 10 - n) == expected[n + 1 :]
        with watch_oplog(database.orders, start_at_operation_time=start, batch_size=n + 1) as stream:
            position = bson.decode(stream.next_batch().token)
        assert server_events(database, 10 - n, resume_after=position) == expected[n + 1 :]


def test_a_stream_begins_with_what_comes_next(database: Database[Any]) -> None:
    database.orders.insert_one({"_id": "before"})
    with watch_oplog(database.orders, [{"$match": {"operationType": "insert"}}]) as stream:
        database.orders.insert_one({"_id": "after"})
        [event] = engine_events(stream, 1)
        assert bson.decode(event)["documentKey"] == {"_id": "after"}


def test_an_idle_stream_moves_on(database: Database[Any]) -> None:
    with watch_oplog(database.quiet, max_await_time_ms=50) as stream:
        before = stream.resume_token
        database.get_collection("loud", write_concern=WriteConcern("majority")).insert_one({})
        deadline = time.monotonic() + PATIENCE
        while stream.resume_token <= before and time.monotonic() < deadline:
            assert stream.next_batch().events == []
        assert stream.resume_token > before


@pytest.mark.mongodb(*VERSIONS)
def test_a_stream_in_the_past_knows_how_far_the_server_is(database: Database[Any]) -> None:
    orders = database.get_collection("orders", write_concern=WriteConcern("majority"))
    start = after(operation_time(database.client))
    for number in range(3):
        orders.insert_one({"_id": number})
    newest = bson.decode(server_events(database, 3, start_at_operation_time=start)[-1])["clusterTime"]
    with watch_oplog(orders, start_at_operation_time=start, batch_size=1, max_await_time_ms=100) as stream:
        batches = [stream.next_batch() for _ in range(4)]
    assert all(batch.operation_time >= newest for batch in batches)
    assert [len(batch.events) for batch in batches] == [1, 1, 1, 0]
    assert batches[-1].is_at_end


@pytest.mark.mongodb(*VERSIONS)
def test_entries_of_other_collections_are_not_the_end(database: Database[Any]) -> None:
    others = database.get_collection("others", write_concern=WriteConcern("majority"))
    start = after(operation_time(database.client))
    others.insert_many([{"_id": number} for number in range(3_500)])
    database.orders.insert_one({"_id": "last"})
    with watch_oplog(database.orders, start_at_operation_time=start, max_await_time_ms=100) as stream:
        batch = stream.next_batch()
        empty = []
        while not batch.events:
            empty.append(batch)
            batch = stream.next_batch()
    assert len(empty) >= 3
    assert not any(batch.is_at_end for batch in empty)


def test_pre_and_post_images_come_from_the_server(database: Database[Any]) -> None:
    database.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
    start = after(operation_time(database.client))
    change_everything(database)
    images = {"full_document": "required", "full_document_before_change": "whenAvailable"}
    expected = server_events(database, 11, start_at_operation_time=start, **images)
    with watch_oplog(database, start_at_operation_time=start, **images) as stream:
        assert engine_events(stream, 11) == expected


def test_the_stream_ends_with_its_collection(database: Database[Any]) -> None:
    with watch_oplog(database.orders) as stream:
        database.orders.insert_one({})
        database.orders.drop()
        types = [bson.decode(event)["operationType"] for event in engine_events(stream, 3)]
        assert types == ["insert", "drop", "invalidate"]
        for batch in stream.batches():
            assert batch.events == []
        assert not stream.alive


def test_refusals_are_those_of_the_server(database: Database[Any]) -> None:
    with pytest.raises(StreamRefused) as refused:
        watch_oplog(database, [{"$group": {"_id": 1}}])
    assert refused.value.server_code == 20
    with pytest.raises(StreamRefused) as refused:
        watch_oplog(database.client.config)
    assert refused.value.server_code == 73


def test_elections_neither_lose_nor_repeat_an_event(start_mongodb: Callable[..., ReplicaSet]) -> None:
    three_nodes = start_mongodb("6.0.5", nodes=3)
    with three_nodes.client() as client, three_nodes.client() as writer:
        orders = writer.shop.get_collection("orders", write_concern=WriteConcern("majority"))
        orders.insert_one({"_id": -1})
        stop = threading.Event()

        def write() -> None:
            for n in range(120):
                orders.update_one({"_id": n}, {"$set": {"n": n}}, upsert=True)
            stop.set()

        thread = threading.Thread(target=write, daemon=True)
        with watch_oplog(client.shop.orders, max_await_time_ms=100) as stream:
            thread.start()
            seen = engine_events(stream, 30)
            three_nodes.step_down()
            seen += engine_events(stream, 120 - len(seen))
        thread.join(timeout=PATIENCE)
    assert stop.is_set()
    assert [bson.decode(event)["documentKey"]["_id"] for event in seen] == list(range(120))
