"""`from_kafka` over all formats: what the capture wrote comes back with the columns of the source itself."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Sequence

import bson
import pytest
from bson.timestamp import Timestamp
from confluent_kafka import Producer

from spark_queries import Collected, run_to_end
from tailrace.capture.formats import make_format, snapshot_event
from tailrace.capture.record import Record
from tailrace.errors import EventUnconvertible, FormatMismatch
from tailrace.spark import error_of, from_kafka
from tailrace.spark.from_kafka import MANY, check_format, likely_format
from tailrace.token import ResumeToken

pytestmark = pytest.mark.xdist_group("spark")
_topics = itertools.count()

DOCUMENT = {
    "_id": bson.ObjectId("65a000000000000000000001"),
    "user_id": 42,
    "amount": 12.5,
    "placed_at": datetime.datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=datetime.UTC),
    "card": {"bank": "north"},
}
KEY = {"_id": DOCUMENT["_id"]}


def token(number: int) -> bytes:
    return ResumeToken.high_water_mark(Timestamp(1_700_000_000 + number, 3)).to_bson()


def event(number: int, operation: str, **parts: object) -> bytes:
    fields = {
        "_id": bson.decode(token(number)),
        "operationType": operation,
        "clusterTime": Timestamp(1_700_000_000 + number, 3),
        "wallTime": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": KEY,
        **parts,
    }
    return bson.encode(fields)


EVENTS = [
    snapshot_event("shop.orders", bson.encode(DOCUMENT), token(0), Timestamp(1_700_000_000, 3)),
    event(1, "insert", fullDocument=DOCUMENT),
    event(2, "update", updateDescription={"updatedFields": {"amount": 3.5}, "removedFields": ["card"]}),
    event(3, "replace", fullDocument=DOCUMENT, fullDocumentBeforeChange={**KEY, "amount": 3.5}),
    event(4, "delete", fullDocumentBeforeChange=DOCUMENT),
]


def produced(kafka, records: Sequence[Record]) -> str:
    """Write records to a new topic of one partition."""
    topic = f"events{next(_topics)}"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for record in records:
        producer.produce(topic, record.value, record.key, headers=list(record.headers))
    assert producer.flush(30) == 0
    return topic


def written(kafka, name: str) -> str:
    written_by = make_format(name, fields=["user_id", "amount", "placed_at", "card.bank"])
    return produced(kafka, [record for one in EVENTS for record in written_by.records(one)])


@pytest.mark.parametrize("name", ["bson", "canonical", "json", "flat", "debezium"])
def test_every_format_gives_the_columns_of_the_source(spark, kafka, name):
    frame = from_kafka(spark, kafka.bootstrap_servers, written(kafka, name), format=name, stream=False)
    rows = sorted(frame.collect(), key=lambda row: row.token)
    assert [row.op for row in rows] == ["read", "insert", "update", "replace", "delete"]
    assert [row.token for row in rows] == [ResumeToken.parse(token(n)).hex for n in range(5)]
    assert [row.cluster_time.timestamp() for row in rows] == [1_700_000_000 + n for n in range(5)]
    assert {(row.db, row.coll) for row in rows} == {("shop", "orders")}
    identity = "65a000000000000000000001" if name == "flat" else {"$oid": "65a000000000000000000001"}
    assert all(json.loads(row.document_key) == {"_id": identity} for row in rows)
    insert, update = json.loads(rows[1].full_document), json.loads(rows[2].update_description)
    assert (insert["_id"], insert["user_id"], insert["amount"]) == (identity, 42, 12.5)
    assert insert["card"] == {"bank": "north"}
    assert update["updatedFields"] == {"amount": 3.5}
    assert rows[2].full_document is None
    assert json.loads(rows[4].full_document_before)["amount"] == 12.5
    if name != "flat":
        assert insert["placed_at"] == {"$date": "2026-05-04T03:02:01.500Z"}
    if name in ("bson", "canonical"):
        assert [bson.decode(bytes(row.raw)) for row in rows] == [bson.decode(one) for one in EVENTS]


def test_a_stream_has_typed_columns_and_ends(spark, kafka, tmp_path):
    columns = "op string, user_id long, amount double, placed_at timestamp, card struct<bank string>"
    topic = written(kafka, "canonical")
    got = Collected()
    frame = from_kafka(spark, kafka.bootstrap_servers, [topic], format="canonical", schema=columns)
    run_to_end(frame, got, tmp_path / "c")
    assert tuple(got.rows[1]) == ("insert", 42, 12.5, datetime.datetime(2026, 5, 4, 3, 2, 1, 500_000), ("north",))


def plain(key: object, value: object) -> Record:
    encoded = None if value is None else json.dumps(value).encode()
    return Record(json.dumps(key).encode(), encoded, (), "", "", b"")


MONGODB_SOURCE = {"connector": "mongodb", "db": "shop", "collection": "orders", "ts_ms": 1_700_000_005_000, "ord": 7}
TABLE_SOURCE = {
    "connector": "postgresql",
    "db": "shop",
    "schema": "public",
    "table": "orders",
    "ts_ms": 1_700_000_000_000,
}


def test_topics_of_debeziums_mongodb_connector(spark, kafka):
    key = {"id": '{"$oid": "65a000000000000000000001"}'}
    after = '{"_id": {"$oid": "65a000000000000000000001"}, "n": {"$numberLong": "5"}, "at": {"$date": 1700000000123}}'
    update = {"updatedFields": '{"n": 6}', "removedFields": ["x"], "truncatedArrays": [{"field": "t", "size": 1}]}
    records = [
        plain(key, {"before": None, "after": after, "source": MONGODB_SOURCE, "op": "c", "ts_ms": 1}),
        plain(key, {"after": None, "updateDescription": update, "source": MONGODB_SOURCE, "op": "u", "ts_ms": 1}),
        plain(key, {"before": after, "after": None, "source": MONGODB_SOURCE, "op": "d", "ts_ms": 1}),
        plain(key, None),
    ]
    frame = from_kafka(spark, kafka.bootstrap_servers, produced(kafka, records), format="debezium", stream=False)
    insert, changed, delete = sorted(frame.collect(), key=lambda row: row.token)
    assert (insert.op, changed.op, delete.op) == ("insert", "update", "delete")
    stored = bson.decode(bytes(insert.raw))
    assert stored["fullDocument"]["n"] == bson.Int64(5)
    assert stored["clusterTime"] == Timestamp(1_700_000_005, 7)
    assert json.loads(insert.full_document)["at"] == {"$date": "2023-11-14T22:13:20.123Z"}
    assert json.loads(changed.update_description)["truncatedArrays"] == [{"field": "t", "newSize": 1}]
    assert json.loads(delete.full_document_before)["n"] == 5
    assert all(row.document_key == '{"_id":{"$oid":"65a000000000000000000001"}}' for row in (insert, changed, delete))


@pytest.mark.parametrize("with_schema", [False, True])
def test_topics_of_debeziums_relational_connectors(spark, kafka, with_schema):
    def wrapped(payload: object) -> object:
        return {"schema": {"type": "struct"}, "payload": payload} if with_schema else payload

    row = {"id": 7, "user_id": 42, "amount": 9.5}
    records = [
        plain(wrapped({"id": 7}), wrapped({"before": None, "after": row, "source": TABLE_SOURCE, "op": "r"})),
        plain(
            wrapped({"id": 7}),
            wrapped({"before": row, "after": {**row, "amount": 1}, "source": TABLE_SOURCE, "op": "u"}),
        ),
        plain(wrapped({"id": 7}), wrapped({"before": row, "after": None, "source": TABLE_SOURCE, "op": "d"})),
        plain(wrapped({"id": 7}), None),
        plain(None, wrapped({"status": "BEGIN", "id": "571"})),
    ]
    frame = from_kafka(spark, kafka.bootstrap_servers, produced(kafka, records), format="debezium", stream=False)
    read, update, delete = sorted(frame.collect(), key=lambda row: row.token)
    assert (read.op, update.op, delete.op) == ("read", "replace", "delete")
    assert {(one.db, one.coll, one.document_key) for one in (read, update, delete)} == {
        ("public", "orders", '{"_id":7}')
    }
    assert json.loads(update.full_document) == {"_id": 7, "id": 7, "user_id": 42, "amount": 1}
    assert json.loads(delete.full_document_before)["amount"] == 9.5


def test_bad_records_fail_or_become_rows_with_their_cause(spark, kafka):
    good = make_format("json").records(EVENTS[1])
    topic = produced(kafka, [*good, plain({}, {"no": "event"}), *good])
    with pytest.raises(Exception, match="is not of the format json") as failure:
        from_kafka(spark, kafka.bootstrap_servers, topic, format="json", stream=False).collect()
    assert isinstance(error_of(failure.value), EventUnconvertible)
    frame = from_kafka(spark, kafka.bootstrap_servers, topic, format="json", stream=False, keep_bad_records=True)
    rows = frame.collect()
    assert sorted(row.op or "" for row in rows) == ["", "insert", "insert"]
    (bad,) = [row for row in rows if row.cause is not None]
    assert json.loads(bytes(bad.bad_record)) == {"no": "event"}
    assert "@1 is not of the format json" in bad.cause


@pytest.mark.parametrize("name", ["json", "canonical", "bson", "flat", "debezium", "cloudevents"])
def test_every_format_is_known_by_its_records(name: str) -> None:
    written_by = make_format(name, fields=["user_id", "amount"])
    values = [record.value for one in EVENTS for record in written_by.records(one) if record.value is not None]
    assert {likely_format(value) for value in values} == {name}


def test_records_of_a_schema_registry_are_known_by_their_framing() -> None:
    assert likely_format(b"\0\0\0\0\7" + b'{"op": "c"}') == "jsonschema"
    assert likely_format(b"\0\0\0\0\7" + b"\2\6abc\0") == "avro"


@pytest.mark.parametrize(
    ("value", "bad", "expected"),
    [
        (b'{"specversion": "1.0"}', 1, "they look like cloudevents"),
        (b"nothing of ours", MANY, "they look like no known format"),
        (b'{"operationType": 5, "ns": 5}', MANY, "they look like it and are damaged"),
    ],
)
def test_a_batch_without_a_readable_record_is_refused(value: bytes, bad: int, expected: str) -> None:
    with pytest.raises(FormatMismatch, match=expected) as failure:
        check_format("json", bad, value)
    assert "nothing was skipped" in str(failure.value.hint)


def test_a_few_damaged_records_are_dead_letters() -> None:
    check_format("json", 1, b"nothing of ours")
    check_format("json", MANY - 1, b'{"operationType": 5, "ns": 5}')
