"""The features job on real servers: what Redis says equals what an aggregation on MongoDB says."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
import redis
from confluent_kafka import Producer
from pymongo.collection import Collection

from spark_queries import SECONDS, run_to_end, wait_until
from tailrace.capture.formats import make_format
from tailrace.errors import FeaturesLost
from tailrace.features import Definition, read
from tailrace.features.definition import parse_definition
from tailrace.spark import error_of, from_kafka
from tailrace.spark.features import COLUMNS, FeatureJob

pytestmark = pytest.mark.xdist_group("spark")
USERS = [f"u{number}" for number in range(4)]


def definition(database, name: str) -> Definition:
    return parse_definition(
        {
            "name": name,
            "namespace": f"{database.name}.tx",
            "entity": "user",
            "time": "at",
            "time_zone": "America/New_York",
            "feature": [
                {"name": "n_1m", "kind": "count", "window": "1m"},
                {"name": "n_1h", "kind": "count", "window": "1h"},
                {"name": "sum_1h", "kind": "sum", "of": "amount", "window": "1h"},
                {"name": "max_1h", "kind": "max", "of": "amount", "window": "1h"},
                {"name": "merchants_today", "kind": "distinct", "of": "merchant", "window": "today"},
                {"name": "mean", "kind": "mean", "of": "amount", "window": "forever"},
                {"name": "min", "kind": "min", "of": "amount", "window": "forever"},
                {"name": "n", "kind": "count", "window": "forever"},
            ],
        }
    )


def aggregated(collection: Collection[Any], user: str, at: datetime) -> dict[str, Any]:
    """What MongoDB says about a user at a moment."""
    midnight = {"$dateTrunc": {"date": at, "unit": "day", "timezone": "America/New_York"}}
    today = {"$and": [{"$gte": ["$at", midnight]}, {"$lte": ["$at", at]}]}

    def within(length: timedelta) -> dict[str, Any]:
        return {"$and": [{"$gt": ["$at", at - length]}, {"$lte": ["$at", at]}]}

    minute, hour = within(timedelta(minutes=1)), within(timedelta(hours=1))
    group = {
        "_id": None,
        "n_1m": {"$sum": {"$cond": [minute, 1, 0]}},
        "n_1h": {"$sum": {"$cond": [hour, 1, 0]}},
        "sum_1h": {"$sum": {"$cond": [hour, "$amount", 0]}},
        "max_1h": {"$max": {"$cond": [hour, "$amount", None]}},
        "merchants": {"$addToSet": {"$cond": [today, "$merchant", None]}},
        "mean": {"$avg": "$amount"},
        "min": {"$min": "$amount"},
        "n": {"$sum": 1},
    }
    nothing = {"n_1m": 0, "n_1h": 0, "sum_1h": 0.0, "max_1h": None, "merchants": [], "mean": None, "min": None, "n": 0}
    found = next(iter(collection.aggregate([{"$match": {"user": user}}, {"$group": group}])), nothing)
    merchants = [merchant for merchant in found.pop("merchants") if merchant is not None]
    found.pop("_id", None)
    return {**found, "merchants_today": len(merchants)}


def equal_now(client: redis.Redis, collection: Collection[Any], name: str) -> bool:
    """Whether the features of every user are those of the aggregation, at one moment."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(milliseconds=500)
    for user in USERS:
        found = read(client, user, name, at=at.timestamp()).values
        expected = aggregated(collection, user, at)
        if any(found[key] != nearly(value) for key, value in expected.items()):
            return False
    return True


def nearly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-12, abs=1e-9) if isinstance(value, float) else value


class Load:
    """Inserts, updates, deletes, moves between users, and events that come late."""

    def __init__(self, collection: Collection[Any], seed: int) -> None:
        self._collection = collection
        self._chance = random.Random(seed)
        self._next = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        chance, kind = self._chance, self._chance.random()
        key = chance.randrange(self._next) if self._next else None
        if key is None or kind < 0.6:
            late = chance.choice([0, 0, 0, 90, 4_000, 100_000])
            at = datetime.now(UTC) - timedelta(seconds=chance.random() * 10 + late)
            amount, merchant = round(chance.uniform(1, 900), 2), f"m{chance.randrange(7)}"
            document = {"user": chance.choice(USERS), "amount": amount, "merchant": merchant, "at": at}
            self._collection.insert_one({"_id": self._next, **document})
            self._next += 1
        elif kind < 0.8:
            change = chance.choice([{"amount": round(chance.uniform(1, 900), 2)}, {"user": chance.choice(USERS)}])
            self._collection.update_one({"_id": key}, {"$set": change})
        else:
            self._collection.delete_one({"_id": key})


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as made:
        yield made


def test_directly_from_mongodb_with_a_backfill_and_a_replay(spark, mongodb, database, redis_server, client, tmp_path):
    load = Load(database.tx, 1)
    load.run(60)
    job = FeatureJob(definition(database, "direct"), redis_server.url)
    start = job.backfill(spark, mongodb.uri)
    assert equal_now(client, database.tx, "direct")
    load.run(60)
    query = job.start(job.events(spark, mongodb.uri, {"startAtOperationTime": start}), str(tmp_path / "c"))
    try:
        load.run(60)
        wait_until(lambda: equal_now(client, database.tx, "direct"), query)
        # Everything once more, in one batch: what is known already changes nothing.
        frame = spark.read.format("tailrace").options(
            uri=mongodb.uri, namespaces=database.name, startAtOperationTime=start, fullDocument="updateLookup"
        )
        job.apply(frame.schema(COLUMNS).load(), 0)
        assert equal_now(client, database.tx, "direct")
        database.tx.drop()
        wait_until(lambda: equal_now(client, database.tx, "direct"), query)
    finally:
        query.stop()
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
    job = FeatureJob(definition(database, "topics"), redis_server.url)
    events = from_kafka(spark, kafka.bootstrap_servers, database.name, format="canonical", schema=COLUMNS)
    query = job.start(events, str(tmp_path / "c"), availableNow=True)
    assert query.awaitTermination(SECONDS)
    assert equal_now(client, database.tx, "topics")
    client.flushall()
    produce_one(kafka, database.name)
    query = job.start(events, str(tmp_path / "c"), availableNow=True)
    with pytest.raises(Exception, match="features-lost") as failure:
        query.awaitTermination(SECONDS)
    assert isinstance(error_of(failure.value), FeaturesLost)


def produce_one(kafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    event = {"_id": {"_data": "82" + "0" * 16}, "operationType": "delete", "documentKey": {"_id": -1}}
    record = make_format("canonical").records(bson.encode({**event, "ns": {"db": "x", "coll": "y"}}))[0]
    producer.produce(topic, record.value, record.key)
    assert producer.flush(30) == 0


def test_values_decay_after_the_job_has_ended(spark, mongodb, database, redis_server, client, tmp_path):
    at = datetime.now(UTC)
    database.tx.insert_one({"_id": 1, "user": "u0", "amount": 5.0, "merchant": "m", "at": at})
    job = FeatureJob(definition(database, "decay"), redis_server.url)
    job.backfill(spark, mongodb.uri)
    run_to_end(job.events(spark, mongodb.uri), job.apply, tmp_path / "c")
    now = time.time()
    assert read(client, "u0", "decay", at=now)["n_1m"] == 1
    assert read(client, "u0", "decay", at=at.timestamp() + 61)["n_1m"] == 0
    assert read(client, "u0", "decay", at=at.timestamp() + 61)["sum_1h"] == 5.0
    assert read(client, "u0", "decay", at=at.timestamp() + 3601)["sum_1h"] == 0.0
