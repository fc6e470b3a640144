"""pymongo's `watch` and our own through the gateway: the server's events, byte for byte."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from gateway.running_gateway import RunningGateway
from tailrace.cli import serve
from tailrace.driver import watch
from tailrace.monitor import GatewayMetrics
from tailrace.monitor.metrics import REGISTRY
from tailrace.raw.cluster_time import ClusterTime
from tailrace.stand import ReplicaSet

Document = dict[str, Any]
RAW = bson.CodecOptions(RawBSONDocument)


def write(collection: Collection[Document], count: int) -> int:
    """Inserts, updates, deletes and a transaction; gives the number of their events."""
    for number in range(count):
        collection.insert_one({"_id": number, "n": number, "name": "é" * number})
        collection.update_one({"_id": number}, {"$set": {"n": -1 - number}})
        if number % 2:
            collection.delete_one({"_id": number})
    with collection.database.client.start_session() as session, session.start_transaction():
        collection.insert_one({"_id": "a"}, session=session)
        collection.insert_one({"_id": "b"}, session=session)
    return count * 2 + count // 2 + 2


def read(stream: Any, count: int) -> list[bytes]:
    """The next events as bytes."""
    return [bytes(next(stream).raw) for _ in range(count)]


@pytest.mark.mongodb("4.2.6", "4.4.2", "5.0.4", "6.0.5", "6.0.27", "7.0.28")
def test_a_client_sees_the_same_bytes_here_and_there(gateway: RunningGateway, database: Database[Document]) -> None:
    collection = database.create_collection("c")
    with gateway.client() as client:
        through = client[database.name].get_collection("c", codec_options=RAW)
        direct = database.get_collection("c", codec_options=RAW)
        with through.watch() as here, direct.watch() as there:
            count = write(collection, 20)
            events = read(there, count)
            assert read(here, count) == events
        for pipeline in ([{"$match": {"operationType": "update"}}], [{"$project": {"ns": 0}}]):
            start = {"start_at_operation_time": bson.decode(events[0])["clusterTime"]}
            assert _all(through, count, pipeline, **start) == _all(direct, count, pipeline, **start)
        lookup = {"full_document": "updateLookup", "start_at_operation_time": bson.decode(events[0])["clusterTime"]}
        assert _all(through, count, [], **lookup) == _all(direct, count, [], **lookup)


def _all(target: Any, count: int, pipeline: list[Document], **options: Any) -> list[bytes]:
    """What a stream gives of at most so many events, until it has nothing for a while."""
    found: list[bytes] = []
    with target.watch(pipeline, max_await_time_ms=300, **options) as stream:
        nothing = 0
        while len(found) < count and nothing < 3:
            event = stream.try_next()
            nothing = nothing + 1 if event is None else 0
            found += [] if event is None else [bytes(event.raw)]
    return found


def test_a_client_moves_between_gateway_and_server_at_any_token(
    gateway: RunningGateway, database: Database[Document]
) -> None:
    chance = random.Random(7)
    collection = database.create_collection("c")
    with gateway.client() as client, database.get_collection("c", codec_options=RAW).watch() as there:
        start = there.resume_token
        count = write(collection, 40)
        expected = read(there, count)
        found: list[bytes] = []
        token: Any = start
        sides = [client[database.name].get_collection("c", codec_options=RAW), there._target]
        while len(found) < count:
            side = chance.choice(sides)
            size = chance.choice([1, 3, None])
            with side.watch(resume_after=token, batch_size=size) as stream:
                found += read(stream, min(chance.randint(1, 12), count - len(found)))
                token = stream.resume_token
    assert found == expected


@pytest.mark.parametrize("scope", ["cluster", "database", "collection"])
def test_each_scope_and_our_own_driver(gateway: RunningGateway, database: Database[Document], scope: str) -> None:
    with gateway.client() as client:
        inside = client[database.name]
        target: Any = {"cluster": client, "database": inside, "collection": inside.c}[scope]
        pipeline = [{"$match": {"ns.db": database.name}}]
        with watch(target, pipeline, max_await_time_ms=500) as stream, target.watch(pipeline) as pymongos:
            inside.c.insert_many([{"_id": number} for number in range(150)])
            ours = [next(stream)["documentKey"]["_id"] for _ in range(150)]
            theirs = [next(pymongos)["documentKey"]["_id"] for _ in range(150)]
    assert ours == theirs == list(range(150))


def test_everything_else_goes_to_the_server(gateway: RunningGateway, database: Database[Document]) -> None:
    with gateway.client() as client:
        inside = client[database.name]
        inside.c.insert_many([{"_id": number, "n": number % 3} for number in range(500)])
        assert sorted(document["_id"] for document in inside.c.find(batch_size=50)) == list(range(500))
        grouped = inside.c.aggregate([{"$group": {"_id": "$n", "count": {"$sum": 1}}}])
        assert sum(group["count"] for group in grouped) == 500
        with client.start_session() as session, session.start_transaction():
            inside.c.delete_one({"_id": 0}, session=session)
        assert database.c.count_documents({}) == 499
        inside.get_collection("c", write_concern=WriteConcern(w=0)).insert_one({"_id": "unacknowledged"})
        assert inside.c.count_documents({}) in (499, 500)
        assert client.topology_description.topology_type_name == "Sharded"


def test_what_the_engine_does_not_know_is_left_to_the_server_for_that_stream_alone(
    gateway: RunningGateway, database: Database[Document]
) -> None:
    collection = database.create_collection("c")
    square = {"type": "Polygon", "coordinates": [[[0, 0], [0, 9], [9, 9], [9, 0], [0, 0]]]}
    expression = {
        "$function": {"body": "function(n) { return n % 2 == 1; }", "args": ["$fullDocument.n"], "lang": "js"}
    }
    pipelines: list[list[Document]] = [
        [{"$match": {"$jsonSchema": {"properties": {"fullDocument": {"properties": {"n": {"minimum": 2}}}}}}}],
        [{"$match": {"fullDocument.place": {"$geoWithin": {"$geometry": square}}}}],
        [{"$addFields": {"odd": expression}}],
    ]
    with gateway.client() as client, client[database.name].c.watch() as known:
        through, direct = (
            each[database.name].get_collection("c", codec_options=RAW) for each in (client, database.client)
        )
        streams = [(through.watch(pipeline), direct.watch(pipeline)) for pipeline in pipelines]
        assert gateway.gateway.counts.left_to_upstream == len(pipelines)
        serve._show(gateway.gateway, "rs0", GatewayMetrics("here"))
        shown = REGISTRY.get_sample_value("tailrace_gateway_streams_left_to_upstream_total", {"listener": "here"})
        assert shown == len(pipelines)
        assert len(gateway.gateway.cursors) == 1
        for number in range(4):
            collection.insert_one({"_id": number, "n": number, "place": [number * 4, 1]})
        for (here, there), count in zip(streams, (2, 3, 4), strict=True):
            assert read(here, count) == read(there, count)
            here.close()
            there.close()
        assert [next(known)["documentKey"]["_id"] for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(OperationFailure) as refused:
            client[database.name].c.watch([{"$match": {"$noSuchOperator": 1}}])
        with pytest.raises(OperationFailure) as by_server:
            collection.watch([{"$match": {"$noSuchOperator": 1}}])
        assert (refused.value.code, str(refused.value)[:60]) == (by_server.value.code, str(by_server.value)[:60])


@pytest.mark.parametrize("stages", [[], [{"$match": {"operationType": {"$regex": "(insert|update)+"}}}]])
def test_an_error_comes_in_place_of_the_batch_in_which_it_is_met(
    gateway: RunningGateway, database: Database[Document], stages: list[Document]
) -> None:
    collection = database.create_collection("c")
    stage = {"$changeStream": {"fullDocumentBeforeChange": "required"}}
    open_stream = {"aggregate": "c", "pipeline": [stage, *stages], "cursor": {"batchSize": 0}}
    with gateway.client() as client:
        targets = (client[database.name], database)
        sizes = (None, 1, 2, 3)
        cursors = [(each, each.command(open_stream)["cursor"]["id"], size) for size in sizes for each in targets]
        collection.insert_many([{"_id": 1}, {"_id": 2}])
        with database.client.start_session() as session, session.start_transaction():
            collection.update_one({"_id": 1}, {"$set": {"a": 1}}, session=session)
        written = database.client.admin.command("ping")["operationTime"]
        for _ in range(1_000):
            if gateway.hub.reached >= ClusterTime.from_timestamp(written):
                break
            time.sleep(0.05)
        answers = [_until_an_error(*cursor) for cursor in cursors]
    assert answers[::2] == answers[1::2]
    assert [given for given, _ in answers[::2]] == [[], [1, 1], [2], []]
    assert all("txnNumber: " in error for _, error in answers)


def _until_an_error(target: Database[Document], cursor: int, size: int | None) -> tuple[list[int], str]:
    """How many events each getMore gave, and the error that ended the stream."""
    given: list[int] = []
    sized = {} if size is None else {"batchSize": size}
    try:
        while True:
            reply = target.command({"getMore": cursor, "collection": "c", "maxTimeMS": 2_000, **sized})
            given += [len(reply["cursor"]["nextBatch"])]
    except OperationFailure as error:
        return given, str((error.details or {})["errmsg"])


def test_the_server_has_one_cursor_for_many_watchers(gateway: RunningGateway, database: Database[Document]) -> None:
    database.create_collection("c")
    with gateway.client(maxPoolSize=100) as client:
        streams = [client[database.name].c.watch(max_await_time_ms=500) for _ in range(30)]
        try:
            database.c.insert_one({"_id": 1})
            assert [next(stream)["documentKey"] for stream in streams] == [{"_id": 1}] * 30
            current = database.client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
            cursors = [operation for operation in current if operation.get("ns", "").startswith(database.name)]
            assert cursors == []
        finally:
            for stream in streams:
                stream.close()
    assert len(gateway.gateway.cursors) == 0


def test_an_invalidate_closes_the_cursor(gateway: RunningGateway, database: Database[Document]) -> None:
    database.create_collection("c")
    with gateway.client() as client, client[database.name].c.watch() as stream:
        database.c.drop()
        assert [next(stream)["operationType"] for _ in range(2)] == ["drop", "invalidate"]
        assert not stream.alive


def test_refusals_are_the_servers(gateway: RunningGateway, database: Database[Document]) -> None:
    cases: list[tuple[list[Document], Document]] = [
        ([], {"resume_after": {"_data": "garbage"}}),
        ([{"$group": {"_id": 1}}], {}),
        ([{"$project": {"_id": 0}}], {"full_document": "nonsense"}),
        ([{"$match": {"$nonsense": 1}}], {}),
    ]
    with gateway.client() as client:
        for pipeline, options in cases:
            told = []
            for side in (client[database.name].c, database.c):
                with pytest.raises(OperationFailure) as caught, side.watch(pipeline, **options) as stream:
                    stream.try_next()
                told.append((caught.value.code, (caught.value.details or {}).get("errmsg")))
            assert told[0] == told[1]


def test_batches_are_as_large_as_asked_and_never_over_16_mb(
    gateway: RunningGateway, database: Database[Document]
) -> None:
    database.create_collection("c")
    with gateway.client() as client:
        command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
        inside = client[database.name]
        opened = inside.command(command)["cursor"]
        assert opened["firstBatch"] == []
        for number in range(5):
            database.c.insert_one({"_id": number, "padding": "x" * 5_000_000})
        sizes: list[int] = []
        while sum(sizes) < 5:
            more = {"getMore": opened["id"], "collection": "c", "batchSize": 4, "maxTimeMS": 2_000}
            sizes.append(len(inside.command(more)["cursor"]["nextBatch"]))
        assert max(sizes) <= 3
        killed = inside.command({"killCursors": "c", "cursors": [opened["id"]]})
        assert killed["cursorsKilled"] == [opened["id"]]
        with pytest.raises(OperationFailure) as caught:
            inside.command({"getMore": opened["id"], "collection": "c"})
        assert caught.value.code == 43


@pytest.mark.parametrize("compressor", ["zlib", "zstd", "snappy"])
def test_compression_is_negotiated(gateway: RunningGateway, database: Database[Document], compressor: str) -> None:
    with gateway.client(compressors=compressor) as client, client[database.name].c.watch() as stream:
        assert client.admin.command("hello", compression=[compressor])["compression"] == [compressor]
        client[database.name].c.insert_one({"_id": 1, "text": "x" * 10_000})
        assert next(stream)["fullDocument"]["text"] == "x" * 10_000


def test_a_stopping_gateway_lets_clients_go_on_elsewhere(
    start_gateway: Callable[..., RunningGateway], mongodb: ReplicaSet, database: Database[Document]
) -> None:
    database.create_collection("c")
    both = [start_gateway(mongodb.uri), start_gateway(mongodb.uri)]
    hosts = f"mongodb://127.0.0.1:{both[0].port},127.0.0.1:{both[1].port}/"
    with MongoClient(hosts) as client, watch(client[database.name].c, max_await_time_ms=300) as stream:
        found = []
        for number in range(6):
            database.c.insert_one({"_id": number})
            found.append(next(stream)["documentKey"]["_id"])
            if number == 2:
                (serving,) = (each for each in both if len(each.gateway.cursors))
                serving.close()
    assert found == list(range(6))


def test_fail_points_are_the_gateways_own(gateway: RunningGateway, database: Database[Document]) -> None:
    """The server has none, so that what the gateway reads for itself does not use it up."""

    def on_the_server() -> Document:
        return dict(database.client.admin.command({"getParameter": 1, "failpoint.failCommand": 1}))[
            "failpoint.failCommand"
        ]

    before = on_the_server()
    with gateway.client(retryReads=False) as client:
        fail = {"failCommands": ["getMore"], "errorCode": 10107}
        with client[database.name].c.watch(max_await_time_ms=200) as stream:
            client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fail})
            client[database.name].c.insert_one({"_id": 1})
            assert next(stream)["documentKey"] == {"_id": 1}
        fail = {"failCommands": ["ping"], "closeConnection": True}
        client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fail})
        assert on_the_server() == before
        with pytest.raises(PyMongoError):
            client.admin.command("ping")
        client.admin.command("ping")


def test_a_write_concern_error_is_told_beside_the_answer(gateway: RunningGateway, database: Database[Document]) -> None:
    told = {"code": 91, "errmsg": "the set is shutting down"}
    fail = {"failCommands": ["insert"], "writeConcernError": told, "errorLabels": ["RetryableWriteError"]}
    with gateway.client() as client:
        inside = client[database.name]
        client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fail})
        reply = inside.command({"insert": "c", "documents": [{"_id": 1}]}, check=False)
        assert (reply["n"], reply["writeConcernError"], reply["errorLabels"]) == (1, told, ["RetryableWriteError"])
        assert "writeConcernError" not in inside.command({"insert": "c", "documents": [{"_id": 2}]})


def test_many_clients_share_what_may_be_on_its_way_to_them(
    gateway: RunningGateway, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.gateway.streams._REPLY_BYTES", 1_000_000)
    monkeypatch.setattr("tailrace.gateway.streams._LEAST_REPLY_BYTES", 1_000)
    database.create_collection("c")
    with gateway.client() as client, client[database.name].c.watch() as one, client[database.name].c.watch() as two:
        assert gateway.gateway.streams._max_bytes == 500_000
        database.c.insert_many([{"_id": number, "padding": "x" * 200_000} for number in range(6)])
        for stream in (one, two):
            assert [next(stream)["documentKey"]["_id"] for _ in range(6)] == list(range(6))
    assert gateway.gateway.streams._max_bytes == 1_000_000


@pytest.mark.parametrize("first_batch", [0, 10])
def test_a_stream_that_catches_up_pauses_only_where_there_is_nothing_to_read(
    gateway: RunningGateway,
    database: Database[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    first_batch: int,
) -> None:
    """Between its token and its event lie many entries that are for others: a pause after each would take too long."""
    database.create_collection("mine")
    with gateway.client() as client, client[database.name].mine.watch() as stream:
        database.mine.insert_one({"_id": 1})
        token = next(stream)["_id"]
        for number in range(50):
            database.others.insert_one({"_id": number})
        database.mine.insert_one({"_id": 2})
        assert next(stream)["documentKey"] == {"_id": 2}
    for pause in ("streams._CATCH_UP_PAUSE", "change_streams._PAUSE"):
        monkeypatch.setattr(f"tailrace.gateway.{pause}", 1.0)
    monkeypatch.setattr("tailrace.gateway.change_streams._SECONDS_TO_REACH_NOW", 20.0)
    with gateway.client() as client:
        opened = client[database.name].command(
            {
                "aggregate": "mine",
                "pipeline": [{"$changeStream": {"resumeAfter": token}}],
                "cursor": {"batchSize": first_batch},
            }
        )["cursor"]
        read_on = {"getMore": opened["id"], "collection": "mine", "maxTimeMS": 20_000}
        reply = opened if first_batch else client[database.name].command(read_on)["cursor"]
        events = reply["firstBatch" if first_batch else "nextBatch"]
        assert [event["documentKey"] for event in events] == [{"_id": 2}]
