"""The features job: events a second from a Kafka topic into Redis, kept up for a while.

    python -m bench.features [--events 100000] [--warm-up 50000] [--heap 1g]

The events are inserts of payments of a thousand users, and one in ten is of a user of its own. The job applies its
batches in the driver, as it does on one machine. What each process used is told beside the rate, and so are the first
and the last batches and the memory, which show whether that stays so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from statistics import median
from typing import Any

import bson
from bson.timestamp import Timestamp
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.feature_set import REDIS_OPTIONS, definition
from bench.warehouse import cpu_seconds, memory
from bench.workload import transaction
from tailrace.capture.formats import make_format
from tailrace.cli.spark_session import spark_session
from tailrace.features.job import FeatureJob
from tailrace.settings import SparkSettings
from tailrace.stand import Kafka, Redis
from tailrace.token import ResumeToken


def produce(kafka: Kafka, topic: str, count: int) -> None:
    written = make_format("bson")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for number in range(count):
        for record in written.records(insert(number)):
            producer.produce(topic, record.value, record.key)
        if number % 10_000 == 0:
            producer.flush(60)
    producer.flush(60)


def insert(number: int) -> bytes:
    """An insert that happens now."""
    at_us = time.time_ns() // 1_000
    at = Timestamp(at_us // 1_000_000, number + 1)
    token = bson.decode(ResumeToken.high_water_mark(at).to_bson())
    data = transaction(number, at_us)
    place = {"_id": token, "operationType": "insert", "clusterTime": at, "ns": {"db": "bench", "coll": "orders"}}
    return bson.encode({**place, "documentKey": {"_id": data["_id"]}, "fullDocument": data})


def run(spark: Any, kafka: Kafka, redis_url: str, topic: str, checkpoint: str) -> list[dict[str, Any]]:
    """Bring the features to the end of a topic; gives what Spark says about each batch."""
    job = FeatureJob(definition(), redis_url, in_driver=True, format="bson", dead_letters=f"{checkpoint}-letters")
    query = job.start(job.records(spark, kafka.bootstrap_servers, [topic]), checkpoint, availableNow=True)
    query.awaitTermination()
    if query.exception():
        sys.exit(str(query.exception()))
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--warm-up", type=int, default=50_000)
    parser.add_argument("--heap", default="1g")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Kafka.start() as kafka,
        Redis.start(REDIS_OPTIONS) as redis,
        spark_session(SparkSettings(master="local[2]", log_level="error", driver_memory=chosen.heap)) as spark,
    ):
        jvm = int(spark._jvm.ProcessHandle.current().pid())
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for made in admin.create_topics([NewTopic(topic, 6, 1) for topic in ("warm", "measured")]).values():
            made.result(60)
        produce(kafka, "warm", chosen.warm_up)
        run(spark, kafka, redis.url, "warm", f"{folder}/warm")
        produce(kafka, "measured", chosen.events)
        before, used = memory(jvm)[0], used_by(jvm, redis.pid)
        batches = run(spark, kafka, redis.url, "measured", f"{folder}/measured")
        times = [batch["durationMs"]["triggerExecution"] for batch in batches]
        events = sum(batch["numInputRows"] for batch in batches)
        print(f"{events:,} events in {len(batches)} batches: {events / sum(times) * 1_000:,.0f} events/s")
        for name, seconds in used_by(jvm, redis.pid).items():
            print(f"  {name}: {(seconds - used[name]) / events * 1e6:.0f} us of processor time per event")
        print(f"  batches: the first three {median(times[:3]):.0f} ms, the last three {median(times[-3:]):.0f} ms")
        print(f"  memory of the JVM: {before} MB before, {memory(jvm)[0]} MB after them")


def used_by(jvm: int, redis: int) -> dict[str, float]:
    """Give the processor time of each part so far."""
    return {"JVM": cpu_seconds(jvm), "driver": time.process_time(), "Redis": cpu_seconds(redis)}


if __name__ == "__main__":
    main()
