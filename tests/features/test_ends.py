"""Drops, renames and `$out` on their way into features: whatever order the records come in, on real servers."""

from __future__ import annotations

from typing import Any

import bson
import pytest
import redis

from feature_load import Load, equal_now, transactions
from spark_queries import run_to_end
from tailrace.features.job import COLUMNS, FeatureJob

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server.url) as made:
        yield made


def told(collection: Any, start: bson.Timestamp) -> list[bytes]:
    with collection.database.watch(start_at_operation_time=start, max_await_time_ms=300) as stream:
        return [bson.encode(event) for event in iter(stream.try_next, None)]


def test_records_that_come_batches_after_the_end_of_their_collection(spark, database, redis_server, client):
    """Documents that were not known when their collection was dropped do not come back with late records.

    Then the batch of the drop again, as after a crash.
    """
    start: bson.Timestamp = database.client.admin.command("ping")["operationTime"]
    load = Load(database.tx, 5)
    load.run(20)
    database.tx.drop()
    load.run(20)
    events = told(database.tx, bson.Timestamp(start.time, start.inc + 1))
    (drop,) = (event for event in events if bson.decode(event)["operationType"] == "drop")
    others = [event for event in events if event != drop]
    job = FeatureJob(transactions(f"{database.name}.tx", "late"), redis_server.url, in_driver=True)
    job.prepare()
    for number, batch in enumerate(([drop], others[:12], others[12:], [drop])):
        job.apply(spark.createDataFrame([(event,) for event in batch], COLUMNS), number)
        assert number < 2 or equal_now(client, database.tx, "late"), number


def test_another_collection_in_place_of_this_one(spark, mongodb, database, redis_server, client, tmp_path):
    """By `$out`, by a rename, and away by a rename: what is there afterwards counts, and nothing else."""
    Load(database.tx, 6).run(30)
    job = FeatureJob(transactions(f"{database.name}.tx", "out"), redis_server.url, uri=mongodb.uri)
    start = job.backfill(spark, mongodb.uri)
    events = job.events(spark, mongodb.uri, {"startAtOperationTime": start})
    Load(database.other, 7).run(30)

    def follow() -> bool:
        run_to_end(events, job.apply, tmp_path / "c")
        return equal_now(client, database.tx, "out")

    database.other.aggregate([{"$out": "tx"}])
    assert follow()
    database.tx.delete_one({"user": "u1"})
    database.tx.update_many({}, {"$inc": {"amount": 1.0}})
    database.other.rename("tx", dropTarget=True)
    assert follow()
    database.tx.rename("elsewhere")
    assert follow()
