"""The features job on real servers: what Redis says equals what an aggregation on MongoDB says."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from datetime import UTC, datetime

import bson
import pytest
import redis
from confluent_kafka import Producer

from feature_load import USERS, Load, equal_now, transactions, transactions_toml
from spark_queries import SECONDS, most_in_driver, run_to_end, started, wait_until
from tailrace.capture.formats import make_format
from tailrace.cli.app import run
from tailrace.dashboard.sources.job_dead_letters import FeatureDeadLetters
from tailrace.errors import FeaturesLost, FormatMismatch
from tailrace.features import read
from tailrace.features.job import COLUMNS, FeatureJob
from tailrace.spark import error_of, from_kafka

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as made:
        yield made


def test_directly_from_mongodb_with_a_backfill_and_a_replay(spark, mongodb, database, redis_server, client, tmp_path):
    load = Load(database.tx, 1)
    load.run(60)
    job = FeatureJob(transactions(f"{database.name}.tx", "direct"), redis_server.url, in_driver=True)
    start = job.backfill(spark, mongodb.uri)
    assert equal_now(client, database.tx, "direct")
    load.run(60)
    events = job.events(spark, mongodb.uri, {"startAtOperationTime": start})
    query = started(lambda: job.start(events, str(tmp_path / "c")))
    try:
        load.run(60)
        wait_until(lambda: equal_now(client, database.tx, "direct"), query)
        database.tx.drop()
        load.run(20)
        wait_until(lambda: equal_now(client, database.tx, "direct"), query)
    finally:
        query.stop()
    assert any((tmp_path / "c" / "commits").iterdir())
    assert not list((tmp_path / "c").rglob("*.crc")), "each would be one more file and program in every batch"
    # Everything once more, by a query with a new checkpoint: what is known already changes nothing.
    again = FeatureJob(job.definition, redis_server.url)
    run_to_end(again.events(spark, mongodb.uri, {"startAtOperationTime": start}), again.apply, tmp_path / "again")
    assert equal_now(client, database.tx, "direct")
    freshest = read(client, USERS[0], "direct")
    assert freshest.as_of is not None
    assert freshest.freshness is not None


def written(kafka, database, topic: str, start: bson.Timestamp, name: str) -> None:
    """Write the collection's events to a topic, some of them twice and none of them in full after an update."""
    written_by = make_format(name, fields=["user", "amount", "merchant", "at"])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    with database.tx.watch(start_at_operation_time=start, max_await_time_ms=200) as stream:
        number = 0
        while (event := stream.try_next()) is not None:
            for record in written_by.records(bson.encode(event)):
                for _ in range(1 + number % 2):
                    producer.produce(topic, record.value, record.key, headers=list(record.headers))
            number += 1
    assert producer.flush(30) == 0


def test_from_topics_with_duplicates_and_updates_without_documents(
    spark, kafka, mongodb, database, redis_server, client, tmp_path
):
    start: bson.Timestamp = database.client.admin.command("ping")["operationTime"]
    Load(database.tx, 2).run(200)
    written(kafka, database, database.name, bson.Timestamp(start.time, start.inc + 1), "canonical")
    produce_bad(kafka, database.name)
    letters = str(tmp_path / "dead")
    job = FeatureJob(transactions(f"{database.name}.tx", "topics"), redis_server.url, letters)
    events = from_kafka(
        spark, kafka.bootstrap_servers, database.name, format="canonical", schema=COLUMNS, keep_bad_records=True
    )
    query = job.start(events, str(tmp_path / "c"), availableNow=True)
    assert query.awaitTermination(SECONDS)
    assert equal_now(client, database.tx, "topics")
    (bad,) = spark.read.parquet(f"{letters}/topics").collect()
    assert (bytes(bad.bad_record), "is not of the format canonical" in bad.cause) == (b"no JSON", True)
    (shown,) = FeatureDeadLetters(letters).poll().newest
    assert (shown.cause, shown.bytes) == ("event-unconvertible", len(b"no JSON"))
    client.flushall()
    produce_one(kafka, database.name)
    query = job.start(events, str(tmp_path / "c"), availableNow=True)
    with pytest.raises(Exception, match="features-lost") as failure:
        query.awaitTermination(SECONDS)
    assert isinstance(error_of(failure.value), FeaturesLost)


@pytest.mark.parametrize("size", ["1g", "8k"], ids=["small", "too-large"])
def test_topics_whose_records_the_driver_reads_itself(spark, kafka, database, redis_server, client, tmp_path, size):
    """What is too large for the driver, tasks read."""
    start: bson.Timestamp = database.client.admin.command("ping")["operationTime"]
    Load(database.tx, 3).run(80)
    written(kafka, database, database.name, bson.Timestamp(start.time, start.inc + 1), "bson")
    produce_bad(kafka, database.name)
    letters = str(tmp_path / "dead")
    place = redis_server.url, letters
    job = FeatureJob(transactions(f"{database.name}.tx", "records"), *place, in_driver=True, format="bson")
    with most_in_driver(spark, size):
        query = job.start(job.records(spark, kafka.bootstrap_servers, [database.name]), str(tmp_path / "c"))
        try:
            wait_until(lambda: equal_now(client, database.tx, "records"), query)
            wait_until(lambda: client.hget("records:progress", "batch") is not None, query)
        finally:
            query.stop()
    (bad,) = spark.read.parquet(f"{letters}/records").collect()
    assert (bytes(bad.bad_record), "is not of the format bson" in bad.cause) == (b"no JSON", True)


def produce_bad(kafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"no JSON")
    assert producer.flush(30) == 0


def produce_one(kafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    event = {"_id": {"_data": "82" + "0" * 16}, "operationType": "delete", "documentKey": {"_id": -1}}
    record = make_format("canonical").records(bson.encode({**event, "ns": {"db": "x", "coll": "y"}}))[0]
    producer.produce(topic, record.value, record.key)
    assert producer.flush(30) == 0


def test_values_decay_after_the_job_has_ended(spark, mongodb, database, redis_server, client, tmp_path):
    at = datetime.now(UTC)
    database.tx.insert_one({"_id": 1, "user": "u0", "amount": 5.0, "merchant": "m", "at": at})
    job = FeatureJob(transactions(f"{database.name}.tx", "decay"), redis_server.url)
    job.backfill(spark, mongodb.uri)
    run_to_end(job.events(spark, mongodb.uri), job.apply, tmp_path / "c")
    now = time.time()
    assert read(client, "u0", "decay", at=now)["n_1m"] == 1
    assert read(client, "u0", "decay", at=at.timestamp() + 61)["n_1m"] == 0
    assert read(client, "u0", "decay", at=at.timestamp() + 61)["sum_1h"] == 5.0
    assert read(client, "u0", "decay", at=at.timestamp() + 3601)["sum_1h"] == 0.0


def test_another_format_stops_it_and_dead_letters_come_back(
    spark, kafka, database, redis_server, client, tmp_path, monkeypatch, capsys
):
    start: bson.Timestamp = database.client.admin.command("ping")["operationTime"]
    load = Load(database.tx, 4)
    load.run(20)
    written(kafka, database, database.name, bson.Timestamp(start.time, start.inc + 1), "json")
    definition, letters = transactions(f"{database.name}.tx", "formats"), str(tmp_path / "dead")

    def read_as(format: str) -> FeatureJob:
        return FeatureJob(definition, redis_server.url, letters, in_driver=True, format=format)

    def run_as(format: str) -> None:
        job = read_as(format)
        records = job.records(spark, kafka.bootstrap_servers, [database.name])
        query = job.start(records, str(tmp_path / "c"), availableNow=True)
        try:
            assert query.awaitTermination(SECONDS)
        finally:
            query.stop()

    with pytest.raises(Exception, match="they look like json") as failure:
        run_as("bson")
    assert isinstance(error_of(failure.value), FormatMismatch)
    again: bson.Timestamp = database.client.admin.command("ping")["operationTime"]
    load.run(20)
    written(kafka, database, database.name, bson.Timestamp(again.time, again.inc + 1), "bson")
    last: bson.Timestamp = database.client.admin.command("ping")["operationTime"]
    load.run(5)
    written(kafka, database, database.name, bson.Timestamp(last.time, last.inc + 1), "json")
    run_as("json")
    (tmp_path / "features.toml").write_text(transactions_toml(f"{database.name}.tx", "formats"))
    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", lambda _, **__: nullcontext(spark))
    monkeypatch.setenv("TAILRACE_FEATURES__DEAD_LETTERS", letters)
    replay = ["features", "replay-dead-letters", str(tmp_path / "features.toml"), "--redis", redis_server.url]
    assert run([*replay, "--format", "bson"]) == 0
    said = capsys.readouterr().out
    found = re.fullmatch(r"(\d+) records are in the features, 0 cannot be read\n", said)
    assert found is not None, said
    assert int(found[1]) >= 20
    assert equal_now(client, database.tx, "formats")
    assert read_as("bson").replay_dead_letters(spark) == (0, 0)
