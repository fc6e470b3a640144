"""`format("tailrace")` on a real replica set: what it gives is what the server's own change stream gives."""

from __future__ import annotations

import json
import runpy
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.timestamp import Timestamp
from pyspark.errors import StreamingQueryException
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from spark_queries import SECONDS, Collected, run_to_end, running, wait_until
from tailrace.errors import HistoryLost, SettingsError
from tailrace.spark import drain, error_of, jvm, position_now
from tailrace.spark.columns import ENVELOPE
from tailrace.spark.source import StreamReader, TailraceDataSource

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def reading(spark, mongodb, database, kind="read", **options: Any) -> Any:
    reader = spark.readStream if kind == "readStream" else spark.read
    chosen = {"uri": mongodb.uri, "namespaces": database.name, **options}
    return reader.format("tailrace").options(**chosen)


def now(database) -> str:
    time: Timestamp = database.client.admin.command("ping")["operationTime"]
    return f"{time.time}:{time.inc + 1}"


def server_events(database, start: str) -> list[dict[str, Any]]:
    """The events that the server itself gives from a time on."""
    at = Timestamp(*map(int, start.split(":")))
    stages = [{"$match": {"ns.db": database.name}}]
    with database.client.watch(stages, start_at_operation_time=at, max_await_time_ms=200) as stream:
        events = []
        while (event := stream.try_next()) is not None:
            events.append(event)
        return events


def change_things(database, count: int = 40) -> None:
    database.orders.insert_many([{"_id": n, "user": f"u{n % 5}", "amount": n * 1.5} for n in range(count)])
    database.orders.update_many({"_id": {"$lt": 5}}, {"$set": {"amount": 0.5}})
    database.orders.replace_one({"_id": 6}, {"user": "u9"})
    database.orders.delete_many({"_id": {"$gte": count - 3}})


@pytest.mark.parametrize("source", ["change-stream", "oplog"])
def test_a_batch_of_history_is_the_servers_stream(spark, mongodb, database, source):
    start = now(database)
    change_things(database)
    frame = reading(spark, mongodb, database, source=source, startAtOperationTime=start, partitions="3").load()
    rows = sorted(frame.collect(), key=lambda row: row.token)
    expected = server_events(database, start)
    assert [bson.decode(bytes(row.raw)) for row in rows] == expected
    assert [row.token for row in rows] == [event["_id"]["_data"] for event in expected]
    assert [row.op for row in rows] == [event["operationType"] for event in expected]
    assert {(row.db, row.coll) for row in rows} == {(database.name, "orders")}
    first = rows[0]
    assert json.loads(first.full_document) == {"_id": 0, "user": "u0", "amount": 0.0}
    assert json.loads(first.document_key) == {"_id": 0}
    assert first.cluster_time.timestamp() == expected[0]["clusterTime"].time
    assert first.wall_time == expected[0]["wallTime"]


@pytest.mark.parametrize("source", ["change-stream", "oplog"])
def test_a_collections_own_stream_goes_on_behind_its_invalidate_event(spark, mongodb, database, source, tmp_path):
    start = now(database)
    change_things(database)
    database.other.insert_one({})
    database.orders.drop()
    database.orders.insert_one({"_id": "again"})
    chosen = {"namespaces": f"{database.name}.orders", "scope": "collection", "source": source}
    frame = reading(spark, mongodb, database, **chosen, startAtOperationTime=start, partitions="3").load()
    rows = sorted(frame.collect(), key=lambda row: row.token)
    seen = [(row.op, row.token) for row in rows if row.op != "invalidate"]
    events = [event for event in server_events(database, start) if event["ns"]["coll"] == "orders"]
    assert seen == [(event["operationType"], event["_id"]["_data"]) for event in events]
    assert [row.op for row in rows][-3:] == ["drop", "invalidate", "insert"]
    collected = Collected()
    limits = {"maxEventsPerBatch": "7", "startAtOperationTime": start}
    stream = reading(spark, mongodb, database, "readStream", **chosen, **limits).load()
    with running(stream, collected, tmp_path / "c") as query:
        wait_until(lambda: len(collected.rows) >= len(rows), query)
    assert sorted(row.token for row in collected.rows) == [row.token for row in rows]


def test_a_batch_may_end_before_now(spark, mongodb, database):
    start = now(database)
    change_things(database)
    events = server_events(database, start)
    last = events[9]["_id"]["_data"]
    frame = reading(spark, mongodb, database, startAtOperationTime=start, endAt=last).load()
    assert sorted(row.token for row in frame.collect()) == [event["_id"]["_data"] for event in events[:10]]
    after = reading(spark, mongodb, database, startAfter=last).load()
    assert after.count() == len(events) - 10


def test_a_snapshot_has_every_document_once_over_several_partitions(spark, mongodb, database):
    database.orders.insert_many([{"_id": n, "user": f"u{n}", "filler": "x" * 2000} for n in range(9_000)])
    database.orders.insert_many([{"_id": f"text{n}"} for n in range(10)])
    names = f"{database.name}.orders"
    frame = reading(spark, mongodb, database, namespaces=names, snapshot="true").schema("op string, _id string").load()
    assert frame.rdd.getNumPartitions() > 1
    rows = frame.collect()
    assert {row.op for row in rows} == {"read"}
    assert sorted(row._id for row in rows) == sorted([str(n) for n in range(9_000)] + [f"text{n}" for n in range(10)])


def test_a_stream_gives_what_happens_and_goes_on_after_a_restart(spark, mongodb, database, tmp_path):
    start = now(database)
    got = Collected()
    with running(reading(spark, mongodb, database, "readStream").load(), got, tmp_path / "c") as query:
        wait_until(lambda: 0 in got.batches, query)
        change_things(database)
        expected = server_events(database, start)
        wait_until(lambda: len(got.rows) >= len(expected), query)
    change_things_while_stopped = [{"_id": n} for n in range(100, 110)]
    database.orders.insert_many(change_things_while_stopped)
    run_to_end(reading(spark, mongodb, database, "readStream").load(), got, tmp_path / "c")
    expected = server_events(database, start)
    assert [row.token for row in got.rows] == [event["_id"]["_data"] for event in expected]


def test_batches_are_cut_and_nothing_is_lost(spark, mongodb, database, tmp_path):
    start = now(database)
    database.orders.insert_many([{"_id": n} for n in range(50)])
    database.orders.insert_many([{"_id": n, "filler": "x" * 9000} for n in range(50, 60)])
    options = {"startAtOperationTime": start, "maxEventsPerBatch": "20", "maxBytesPerBatch": "30000"}
    got = Collected()
    with running(reading(spark, mongodb, database, "readStream", **options).load(), got, tmp_path / "c") as query:
        wait_until(lambda: len(got.rows) >= 60, query)
    sizes = [len(rows) for rows in got.batches.values() if rows]
    assert max(sizes) == 20
    assert all(sum(len(row.raw) for row in rows) <= 30_000 for rows in got.batches.values())
    assert [json.loads(row.document_key)["_id"] for row in got.rows] == list(range(60))


def test_rows_of_a_small_batch_go_along_and_its_range_gives_the_same(mongodb, database):
    options = {"uri": mongodb.uri, "namespaces": database.name, "maxEventsPerBatch": "30"}
    reader = TailraceDataSource({**options, "startAtOperationTime": now(database)}).streamReader(ENVELOPE)
    change_things(database)
    start = end = reader.initialOffset()
    try:
        while end == start:
            end = reader.latestOffset()
        (part,) = reader.partitions(start, end)
        sent = pa.Table.from_batches(reader.getCache(start, end))
        assert 0 < sent.num_rows <= 30
        assert reader.getCache(start, end) is None, "rows go along with their parts, not later"
        assert pa.Table.from_batches(reader.read(part)) == sent
        (nothing,) = reader.partitions(end, end)
        assert list(reader.getCache(end, end)) == list(reader.read(nothing)) == []
    finally:
        reader.stop()


def test_rows_that_go_along_are_one_record_batch(mongodb, database):
    """Between two of them the JVM takes the end of a killed planner for the end of the rows, and loses the others."""
    options = {"uri": mongodb.uri, "namespaces": database.name, "maxEventsPerBatch": "1500"}
    reader = TailraceDataSource({**options, "startAtOperationTime": now(database)}).streamReader(ENVELOPE)
    database.orders.insert_many([{"_id": n} for n in range(1_500)])
    start = end = reader.initialOffset()
    try:
        while end == start:
            end = reader.latestOffset()
        (part,) = reader.partitions(start, end)
        (sent,) = reader.getCache(start, end)
        assert sent.num_rows > 1_000
        assert len(read := list(reader.read(part))) > 1
        assert pa.concat_batches(read) == sent
    finally:
        reader.stop()


def test_without_pysparks_internal_reader_the_tasks_read_every_range(monkeypatch):
    """What such a reader gives them is in the test above: the range of a batch whose rows nobody asks for."""
    assert issubclass(StreamReader, _SimpleStreamReaderWrapper)
    monkeypatch.delattr(datasource_internal, "_SimpleStreamReaderWrapper")
    assert runpy.run_path(jvm.__file__)["PrefetchingReader"] is DataSourceStreamReader


def test_a_stream_of_declared_columns_is_typed(spark, mongodb, database, tmp_path):
    columns = "op string, price decimal(10,2), tags array<string>, `in` struct<x int>, at timestamp, raw binary"
    start, got = now(database), Collected()
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    database.orders.insert_one({"_id": 1, "price": bson.Decimal128("1.25"), "tags": ["a", None], "in": {}, "at": at})
    stream = reading(spark, mongodb, database, "readStream", startAtOperationTime=start, maxEventsPerBatch="9")
    with running(stream.schema(columns).load(), got, tmp_path / "c") as query:
        wait_until(lambda: bool(got.rows), query)
    (row,) = got.rows
    assert (row.op, row.price, row.tags, row["in"].x) == ("insert", Decimal("1.25"), ["a", None], None)
    assert row["at"].astimezone(UTC) == at
    assert bson.decode(bytes(row.raw))["documentKey"] == {"_id": 1}


@pytest.mark.parametrize("partition_by", ["range", "key"])
def test_a_failed_batch_is_read_again_identically(spark, mongodb, database, tmp_path, partition_by):
    start = now(database)
    change_things(database, 200)
    options = {
        "startAtOperationTime": start,
        "maxEventsPerBatch": "150",
        "partitions": "3",
        "partitionBy": partition_by,
    }
    seen: list[list[str]] = []

    def failing(frame: Any, number: int) -> None:
        seen.append(sorted(row.token for row in frame.collect()))
        raise RuntimeError("the sink failed")

    with (
        running(reading(spark, mongodb, database, "readStream", **options).load(), failing, tmp_path / "c") as query,
        pytest.raises(StreamingQueryException, match="the sink failed"),
    ):
        query.awaitTermination(SECONDS)
    database.orders.insert_many([{"_id": n} for n in range(1000, 1010)])
    got = Collected()
    with running(reading(spark, mongodb, database, "readStream", **options).load(), got, tmp_path / "c") as query:
        wait_until(lambda: len(got.rows) >= 200 + 5 + 1 + 3 + 10, query)
    assert sorted(row.token for row in got.batches[0]) == seen[0]
    tokens = [event["_id"]["_data"] for event in server_events(database, start)]
    assert sorted(row.token for row in got.rows) == tokens


def test_key_slices_keep_a_document_together_and_in_order(spark, mongodb, database):
    start = now(database)
    for _ in range(3):
        database.orders.delete_many({})
        database.orders.insert_many([{"_id": n} for n in range(30)])
    frame = reading(spark, mongodb, database, startAtOperationTime=start, partitions="3", partitionBy="key").load()
    parts = frame.rdd.glom().collect()
    assert len(parts) == 3
    homes: dict[str, int] = {}
    for number, rows in enumerate(parts):
        assert rows, "a slice is empty"
        assert [row.token for row in rows] == sorted(row.token for row in rows)
        assert all(homes.setdefault(row.document_key, number) == number for row in rows)
    assert sum(map(len, parts)) == 30 * 5


def test_available_now_ends_also_when_nothing_happened(spark, mongodb, database, tmp_path):
    got = Collected()
    run_to_end(reading(spark, mongodb, database, "readStream").load(), got, tmp_path / "c")
    change_things(database)
    run_to_end(reading(spark, mongodb, database, "readStream").load(), got, tmp_path / "c")
    count = len(got.rows)
    assert count == 40 + 5 + 1 + 3
    run_to_end(reading(spark, mongodb, database, "readStream").load(), got, tmp_path / "c")
    assert len(got.rows) == count


def test_available_now_with_limits_reads_one_batch_and_never_goes_back(spark, mongodb, database, tmp_path):
    """Spark asks a Python source once where everything ends, and before it tells the position of the checkpoint."""
    start = now(database)
    database.orders.insert_many([{"_id": n} for n in range(45)])
    got, limits = Collected(), {"maxEventsPerBatch": "20", "maxBytesPerBatch": "1000000"}

    def run(**options: str) -> None:
        frame = reading(spark, mongodb, database, "readStream", startAtOperationTime=start, **options).load()
        run_to_end(frame, got, tmp_path / "c")

    run(**limits)
    assert len(got.rows) == 20
    with pytest.raises(StreamingQueryException) as caught:
        run(**limits)
    found = error_of(caught.value)
    assert isinstance(found, SettingsError)
    assert "Leave out maxEventsPerBatch" in str(found.hint)
    run()
    assert [json.loads(row.document_key)["_id"] for row in got.rows] == list(range(45))


def test_lost_history_fails_with_our_error_and_its_hint(spark, start_mongodb, tmp_path):
    mongodb = start_mongodb(oplog_mb=1)
    with mongodb.client() as client:
        database = client["lost"]
        options = {"startAtOperationTime": now(database)}
    mongodb.roll_over_oplog()
    got = Collected()
    frame = reading(spark, mongodb, database, "readStream", **options).load()
    with pytest.raises(StreamingQueryException) as failure:
        run_to_end(frame, got, tmp_path / "c", processingTime="0 seconds")
    error = error_of(failure.value)
    assert isinstance(error, HistoryLost)
    assert "new checkpoint from a snapshot" in error.hint
    assert not got.rows


def test_declared_columns_are_typed_and_misfits_are_named(spark, mongodb, database):
    database.orders.insert_many(
        [
            {"_id": bson.ObjectId("0" * 24), "n": 7, "price": bson.Decimal128("1.25"), "tags": ["a"], "in": {"x": 1}},
            {"_id": 2, "n": "seven", "price": 2, "tags": [3], "in": None},
        ]
    )
    columns = "_id string, n long, price decimal(10,2), tags array<string>, `in` struct<x int>, _mismatches string"
    chosen = reading(spark, mongodb, database, namespaces=f"{database.name}.orders", snapshot="true")
    rows = chosen.schema(columns).load().orderBy("_id").collect()
    assert [tuple(row) for row in rows] == [
        ("0" * 24, 7, bson.Decimal128("1.25").to_decimal(), ["a"], (1,), None),
        ("2", None, bson.Decimal128("2.00").to_decimal(), ["3"], None, '["n"]'),
    ]
    with pytest.raises(Exception, match=r"n of event .* does not fit") as failure:
        chosen.option("mode", "failfast").schema(columns).load().collect()
    assert error_of(failure.value).code == "event-unconvertible"


def test_a_schema_is_inferred_from_the_documents(spark, mongodb, database):
    database.orders.insert_many([{"_id": 1, "n": 1, "in": {"a": 1.5}}, {"_id": 2, "n": bson.Int64(5), "in": {"b": []}}])
    frame = reading(spark, mongodb, database, namespaces=f"{database.name}.orders", snapshot="true", inferSchema="true")
    loaded = frame.load()
    row = loaded.where("full_document._id = 1").collect()[0]
    assert row.full_document.n == 1
    document = loaded.schema["full_document"].dataType
    assert (document["n"].dataType.simpleString(), document["in"].dataType["a"].dataType.simpleString()) == (
        "bigint",
        "double",
    )
    assert document["in"].dataType["b"].dataType.simpleString() == "array<string>"
    assert row.full_document["in"].a == 1.5


@pytest.mark.parametrize(
    "options", [{"namespace": "x"}, {"source": "tape"}, {"maxEventsPerBatch": "0"}, {"scope": "collection"}, {}]
)
def test_wrong_options_say_what_is_wrong(spark, mongodb, database, options):
    with pytest.raises(Exception, match="hint: ") as failure:
        reading(spark, mongodb, database, **options).load().collect()
    assert isinstance(error_of(failure.value), SettingsError)


def test_a_policy_holds_for_rows_and_for_an_inferred_schema(spark, mongodb, database, tmp_path):
    file = tmp_path / "governed.toml"
    file.write_text(
        '[policy]\nkey = "0123456789abcdef"\n[[policy.rules]]\nfields = ["user"]\naction = "hash"\n'
        '[[policy.rules]]\nfields = ["amount"]\naction = "drop"\n'
    )
    start = now(database)
    change_things(database, 10)
    frame = reading(spark, mongodb, database, startAtOperationTime=start, settingsFile=str(file)).load()
    shown = [row.full_document for row in frame.collect() if row.full_document]
    assert shown
    assert all(len(json.loads(text)["user"]) == 64 and "amount" not in json.loads(text) for text in shown)
    documents = reading(spark, mongodb, database, snapshot="true", settingsFile=str(file), inferSchema="true").load()
    assert {field.name for field in documents.schema["full_document"].dataType} == {"_id", "user"}
    plan = documents._jdf.queryExecution().toString()
    assert "0123456789abcdef" not in plan


def test_a_snapshot_goes_through_the_pipeline(spark, mongodb, database):
    change_things(database)
    stages = [{"$match": {"fullDocument.user": "u1"}}, {"$project": {"fullDocument.amount": 0}}]
    frame = reading(spark, mongodb, database, snapshot="true", pipeline=json.dumps(stages)).load()
    documents = [json.loads(row.full_document) for row in frame.collect()]
    assert {document["_id"] for document in documents} == {one["_id"] for one in database.orders.find({"user": "u1"})}
    assert not any("amount" in document for document in documents)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"pipeline": '[{"$nonsense": 1}]'}, "stream-refused"),
        ({"fullDocument": "sometimes"}, "stream-refused"),
        ({"uri": "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200"}, "server-unreachable"),
        ({"uri": "mongodb://127.0.0.1:x/"}, "settings-invalid"),
    ],
)
def test_what_is_wrong_with_an_option_or_the_server_has_a_code(spark, mongodb, database, options, code):
    frame = reading(spark, mongodb, database, **{"startAtOperationTime": now(database), **options})
    with pytest.raises(Exception, match="error") as failure:
        frame.load().collect()
    error = error_of(failure.value)
    assert error is not None, str(failure.value)
    assert error.code == code


def test_a_stream_with_an_end_is_drained_in_limited_batches(spark, mongodb, database, tmp_path):
    """What AvailableNow cannot do: several batches up to a position that was fixed before, and on from there."""
    start, got = now(database), Collected()
    source = {"uri": mongodb.uri, "namespaces": database.name}

    def drained() -> None:
        until = position_now(source)
        database.orders.insert_one({"after": until.token.hex})  # behind the end: it is left to the next run
        end = {"startAtOperationTime": start, "endAt": until.token.hex, "maxEventsPerBatch": "20"}
        frame = reading(spark, mongodb, database, "readStream", **end).load()
        for _ in range(2):  # the second time there is nothing to do
            drain(frame.writeStream.foreachBatch(got), until, checkpoint=str(tmp_path / "c"))

    database.orders.insert_many([{"_id": n} for n in range(45)])
    drained()
    assert [len(rows) for _, rows in sorted(got.batches.items()) if rows] == [20, 20, 5]
    database.orders.insert_many([{"_id": n} for n in range(100, 130)])
    drained()
    assert [len(rows) for _, rows in sorted(got.batches.items()) if rows] == [20, 20, 5, 20, 11]
    drained()
    expected = [event["_id"]["_data"] for event in server_events(database, start)]
    assert [row.token for row in got.rows] == expected[:-1], "nothing twice, nothing left out but what came last"
