"""What both kinds of stream do beyond the specification's tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import DatetimeMS, Int64, Timestamp
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.collation import Collation
from pymongo.errors import ConnectionFailure, OperationFailure
from pymongo.read_concern import ReadConcern

from driver.scripted_server import ScriptedServer
from driver.shells import Recorder, Shell
from fault_proxies import FaultProxy
from tailrace.driver import token_of, watch
from tailrace.stand import ReplicaSet
from waiting import SECONDS

Connect = Callable[..., tuple[Any, Recorder]]


@pytest.fixture
def orders(database: Any) -> Any:
    database.create_collection("orders")
    return database.orders


def watched(client: Any, orders: Any) -> Any:
    return client[orders.database.name][orders.name]


# --- commands


def test_the_three_scopes(mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect) -> None:
    client, recorder = connect(mongodb.uri)
    name = orders.database.name
    for target in (client[name].orders, client[name], client):
        with shell.watch(target) as stream:
            orders.insert_one({})
            assert stream.next()["ns"] == {"db": name, "coll": "orders"}
    collection, database, cluster = recorder.of("aggregate")
    assert (collection["aggregate"], collection["$db"], collection["pipeline"]) == (
        "orders",
        name,
        [{"$changeStream": {}}],
    )
    assert (database["aggregate"], database["$db"], database["pipeline"]) == (1, name, [{"$changeStream": {}}])
    assert (cluster["aggregate"], cluster["$db"]) == (1, "admin")
    assert cluster["pipeline"] == [{"$changeStream": {"allChangesForCluster": True}}]
    assert [(more["collection"], more["$db"]) for more in recorder.of("getMore")] == [
        ("orders", name),
        ("$cmd.aggregate", name),
        ("$cmd.aggregate", "admin"),
    ]


def test_options_reach_the_server_where_the_specification_wants_them(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    with shell.watch(
        watched(client, orders),
        full_document="updateLookup",
        full_document_before_change="whenAvailable",
        show_expanded_events=True,
        max_await_time_ms=40,
        batch_size=3,
        collation=Collation(locale="de"),
        comment={"why": "test"},
        read_concern=ReadConcern("majority"),
    ) as stream:
        assert stream.try_next() is None
    (aggregate,) = recorder.of("aggregate")
    assert aggregate["pipeline"] == [
        {
            "$changeStream": {
                "fullDocument": "updateLookup",
                "fullDocumentBeforeChange": "whenAvailable",
                "showExpandedEvents": True,
            }
        }
    ]
    assert aggregate["cursor"] == {"batchSize": 3}
    assert aggregate["collation"]["locale"] == "de"
    assert aggregate["comment"] == {"why": "test"}
    assert aggregate["readConcern"] == {"level": "majority"}
    assert "maxTimeMS" not in aggregate
    (more,) = recorder.of("getMore")
    assert (more["maxTimeMS"], more["batchSize"], more["comment"]) == (40, 3, {"why": "test"})


@pytest.mark.parametrize(
    "options",
    [
        {"full_document": "surprise"},
        {"full_document": 5},
        {"full_document_before_change": "surprise"},
        {"resume_after": {}},
        {"resume_after": "text"},
        {"start_after": {"_data": "82"}, "resume_after": {"_data": "82"}},
        {"start_at_operation_time": "yesterday"},
        {"read_concern": ReadConcern("local")},
        {"collation": {"locale": "klingon"}},
        {"show_expanded_events": "yes"},
    ],
    ids=str,
)
def test_the_server_judges_values(
    options: dict[str, Any], mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, _ = connect(mongodb.uri)
    with pytest.raises(OperationFailure) as caught:
        shell.watch(watched(client, orders), **options)
    assert isinstance(caught.value.details, dict)
    assert caught.value.details["errmsg"]


def test_a_wrong_name_or_target_is_the_programs_mistake(mongodb: ReplicaSet, orders: Any) -> None:
    with pytest.raises(TypeError, match="full_docment"):
        watch(orders, full_docment="updateLookup")
    with pytest.raises(TypeError, match="can be watched"):
        watch("shop.orders")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="asynchronous"):
        watch(orders, on_resume_token=print)


def test_an_explicit_session_is_used_throughout(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, recorder = connect(mongodb.uri)
    session = client.start_session()
    with shell.watch(watched(client, orders), session=session, max_await_time_ms=20) as stream:
        stream.try_next()
    lsids = [command["lsid"] for command in recorder.of("aggregate", "getMore", "killCursors")]
    assert len(lsids) == 3
    assert all(lsid == session.session_id for lsid in lsids)
    shell.call(session.end_session)


# --- iterating


def test_batches_are_bytes_with_tokens_and_move_the_position(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, _ = connect(mongodb.uri)
    with shell.watch(watched(client, orders), max_await_time_ms=50) as stream:
        orders.insert_many([{"n": n} for n in range(5)])
        full, empty = shell.batches(stream, 2)
        assert [bson.decode(event)["fullDocument"]["n"] for event in full.events] == list(range(5))
        assert full.tokens == [bson.encode(bson.decode(event)["_id"]) for event in full.events]
        assert full.operation_time >= bson.decode(full.events[-1])["clusterTime"]
        assert not empty.events
        assert empty.resume_token == stream.resume_token
        assert bson.decode(empty.token) == empty.resume_token
        orders.insert_one({"n": 5})
    for token in (full.resume_token, full.token):  # the document, and its bytes where somebody kept those
        with shell.watch(watched(client, orders), resume_after=token) as stream:
            assert stream.next()["fullDocument"]["n"] == 5


def test_iteration_and_batches_mix(mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect) -> None:
    client, _ = connect(mongodb.uri)
    with shell.watch(watched(client, orders)) as stream:
        orders.insert_many([{"n": n} for n in range(4)])
        assert stream.next()["fullDocument"]["n"] == 0
        (rest,) = shell.batches(stream, 1)
        assert [bson.decode(event)["fullDocument"]["n"] for event in rest.events] == [1, 2, 3]


def test_tokens_of_transactions_and_renames_are_not_first(mongodb: ReplicaSet, orders: Any) -> None:
    client = orders.database.client
    with watch(orders.database) as stream:
        with client.start_session() as session, session.start_transaction():
            orders.insert_one({}, session=session)
        orders.rename("renamed")
        for batch in stream.batches():
            for event in batch.events:
                decoded = bson.decode(event)
                assert next(iter(decoded)) != "_id"
                assert bson.decode(token_of(event)) == decoded["_id"]
                if decoded["operationType"] == "rename":
                    return


def test_an_invalidated_stream_gives_its_events_and_ends(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, _ = connect(mongodb.uri)
    with shell.watch(watched(client, orders)) as stream:
        orders.insert_one({})
        orders.drop()
        kinds = [stream.next()["operationType"] for _ in range(3)]
        assert kinds == ["insert", "drop", "invalidate"]
        token = stream.resume_token
        with pytest.raises(StopIteration):
            stream.next()
        assert stream.try_next() is None
        assert not stream.alive
    orders.insert_one({"n": 1})
    with shell.watch(watched(client, orders), start_after=token) as stream:
        assert stream.next()["fullDocument"]["n"] == 1


def test_events_decode_with_the_users_codec_options(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, _ = connect(mongodb.uri)
    far = DatetimeMS(10**15)
    raw = watched(client, orders).with_options(CodecOptions(document_class=RawBSONDocument))
    precise = watched(client, orders).with_options(CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS))
    with shell.watch(raw) as raw_stream, shell.watch(precise) as stream:
        orders.insert_one({"when": far})
        assert stream.next()["fullDocument"]["when"] == far
        assert isinstance(raw_stream.next(), RawBSONDocument)


class Money:
    """A user's own type."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


class MoneyCodec(TypeCodec):
    python_type = Money
    bson_type = Int64

    def transform_python(self, value: Money) -> Int64:
        return Int64(value.cents)

    def transform_bson(self, value: int) -> Money:
        return Money(value)


def test_the_users_types_are_encoded_in_pipelines_and_decoded_in_events(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect
) -> None:
    client, _ = connect(mongodb.uri)
    target = watched(client, orders).with_options(CodecOptions(type_registry=TypeRegistry([MoneyCodec()])))
    pipeline = [{"$match": {"fullDocument.price": Money(500)}}]
    with shell.watch(target, pipeline) as stream:
        orders.insert_many([{"price": Int64(400)}, {"price": Int64(500)}])
        event = stream.next()
        orders.insert_one({"price": Int64(500)})
        assert event["fullDocument"]["price"].cents == 500
    with shell.watch(target, pipeline, resume_after=event["_id"]) as stream:
        assert stream.next()["fullDocument"]["price"].cents == 500


def test_a_stream_starts_at_a_time(mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect) -> None:
    client, _ = connect(mongodb.uri)
    orders.insert_one({"n": 1})
    time_of_second = orders.database.command("insert", "orders", documents=[{"n": 2}])["operationTime"]
    with shell.watch(watched(client, orders), start_at_operation_time=Timestamp(time_of_second.time, 0)) as stream:
        seen = [stream.next()["fullDocument"]["n"]]
        if seen == [1]:
            seen.append(stream.next()["fullDocument"]["n"])
        assert seen[-1] == 2


# --- ends and outages


def test_close_ends_an_iteration_in_another_thread(mongodb: ReplicaSet, orders: Any) -> None:
    # mongod lets a getMore that waits go on until the next oplog entry or the end of its time, killed or not.
    stream = watch(orders, max_await_time_ms=1_500)
    ended = threading.Event()

    def iterate() -> None:
        for _ in stream:
            pass
        ended.set()

    threading.Thread(target=iterate, daemon=True).start()
    time.sleep(0.2)
    stream.close()
    assert ended.wait(SECONDS)


def test_a_cancelled_call_loses_nothing(mongodb: ReplicaSet, orders: Any) -> None:
    async def run() -> list[int]:
        seen = []
        async with AsyncMongoClient(mongodb.uri) as client, watch(watched(client, orders)) as stream:
            for n in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(stream.next(), 0.05)
                orders.insert_one({"n": n})
                event = await asyncio.wait_for(stream.next(), SECONDS)
                seen.append(event["fullDocument"]["n"])
        return seen

    assert asyncio.run(run()) == [0, 1, 2]


def test_resume_tokens_are_announced_to_the_callback(mongodb: ReplicaSet, orders: Any) -> None:
    async def run() -> None:
        plain: list[Any] = []
        awaited: list[Any] = []

        async def keep(token: Any) -> None:
            awaited.append(token)

        async with AsyncMongoClient(mongodb.uri) as client:
            target = watched(client, orders)
            async with (
                watch(target, on_resume_token=plain.append, max_await_time_ms=20) as stream,
                watch(target, on_resume_token=keep, max_await_time_ms=20) as other,
            ):
                assert plain == [stream.resume_token]
                orders.insert_many([{}, {}])
                first = await stream.next()
                assert plain[1:] == [first["_id"]]
                await stream.next()
                orders.database.elsewhere.insert_one({})
                assert await stream.try_next() is None
                assert plain[-1] == stream.resume_token
                assert len(plain) == 4
                await other.next()
                assert awaited[-1] == other.resume_token

    asyncio.run(run())


def test_an_outage_longer_than_one_attempt_needs_a_budget(
    mongodb: ReplicaSet, orders: Any, shell: Shell, connect: Connect, fault_proxy: Callable[[int], FaultProxy]
) -> None:
    proxy = fault_proxy(mongodb.primary.port)
    uri = f"mongodb://{proxy.address}/?directConnection=true"
    client, _ = connect(uri, serverSelectionTimeoutMS=300)
    target = watched(client, orders)
    with shell.watch(target) as plain, shell.watch(target, resume_for=timedelta(seconds=60)) as patient:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ConnectionFailure):
            plain.next()
        assert plain.alive, "the next call tries again"
        healer = threading.Timer(1.0, proxy.heal)
        healer.start()
        orders.insert_one({"n": 1})
        assert patient.next()["fullDocument"]["n"] == 1
        healer.join()
        assert plain.next()["fullDocument"]["n"] == 1


def test_a_server_without_post_batch_tokens_and_sessions_works(shell: Shell, connect: Connect) -> None:
    """As DocumentDB does; with the fewest fields that a reply can have."""

    def answer(command: dict[str, Any]) -> Any:
        if "aggregate" in command:
            return {"ok": 1, "cursor": {"id": 9, "ns": "a.b", "firstBatch": []}}
        number = len(server.of("getMore"))
        if number in (1, 3):
            return None
        return {"ok": 1, "cursor": {"id": 9, "ns": "a.b", "nextBatch": [{"_id": {"t": number}, "n": number}]}}

    server = ScriptedServer(answer, wire_version=8)
    client, _ = connect(server.uri)
    with shell.watch(client.a.b) as stream:
        assert [stream.next()["n"] for _ in range(2)] == [2, 4]
        assert stream.resume_token == {"t": 4}
    stages = [command["pipeline"][0]["$changeStream"] for command in server.of("aggregate")]
    assert stages == [{}, {}, {"resumeAfter": {"t": 2}}]
    server.close()


# --- reading ahead
