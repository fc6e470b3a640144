"""Faults that come together, and elections that take writes back: nothing is lost, nothing is invented."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from capture_harness import Harness, run_in_background
from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.recovery.topic_reader import TopicContents, topics_like
from tailrace.settings import Settings
from tailrace.stand import Kafka, Postgres, Redis, ReplicaSet
from waiting import wait_until


def exactly_once(uri: str, kafka: Kafka, **more: Any) -> Settings:
    name = f"faults-{uuid.uuid4().hex[:8]}"
    return Settings.load(
        flags={
            "mongodb.uri": uri,
            "capture.name": name,
            "capture.namespaces": ("shop.orders",),
            "capture.sink": f"kafka://{kafka.bootstrap_servers}",
            "capture.topic_prefix": name,
            "capture.partitions": 1,
            "capture.delivery": "exactly-once",
            "capture.position_store": f"kafka://{kafka.bootstrap_servers}/{name}-positions",
            **{f"capture.{key}": value for key, value in more.items()},
        }
    )


def keys_in_topic(kafka: Kafka, prefix: str) -> list[Any]:
    address = KafkaAddress(kafka.bootstrap_servers)
    found = TopicContents(address, topics_like(address, rf"{prefix}\..*\.orders")).messages()
    return [orjson.loads(message.value or b"")["documentKey"]["_id"] for message in found]


def cut_off_writes(replica_set: ReplicaSet, count: int) -> int:
    """Write to a primary that nobody hears, and let the others elect another one; gives how much was written.

    The others are killed: what was sent to one that is only stopped would be there when it goes on.
    """
    old, others = replica_set.primary, replica_set.secondaries
    for node in others:
        node.kill()
    written = 0
    with MongoClient[dict[str, Any]](old.uri, w=1, directConnection=True, serverSelectionTimeoutMS=2_000) as client:
        try:
            for number in range(count):
                client.shop.orders.insert_one({"_id": f"taken back {number}"})
                written += 1
        except PyMongoError:
            pass
    old.pause()
    for node in others:
        node.restart()
    return written


@pytest.mark.parametrize("kind", ["change-stream", pytest.param("oplog", marks=pytest.mark.long)])
def test_what_an_election_takes_back_is_never_delivered(
    start_mongodb: Callable[..., ReplicaSet], kafka: Kafka, kind: str
) -> None:
    """Writes with w: 1 on a primary that is cut off; exactly once, in the order of the history that stays."""
    replica_set = start_mongodb(nodes=3)
    old = replica_set.primary
    settings = exactly_once(replica_set.uri, kafka, source=kind)
    options = {"socketTimeoutMS": 3_000, "heartbeatFrequencyMS": 500}
    with replica_set.client(w="majority", **options) as client, Capture.open(settings, client) as capture:
        capture.producer(stop_when_idle=True).run()
        with run_in_background(capture.producer()) as producer:
            for number in range(100):
                client.shop.orders.insert_one({"_id": number})
            wait_until(lambda: producer.delivered >= 100, "the stream runs", 60)
            taken_back = cut_off_writes(replica_set, 50)
            assert taken_back > 0
            wait_until(lambda: replica_set.primary is not old, "another primary", 60)
            insert_all(client, range(100, 200))
            old.resume()
            wait_until(lambda: producer.delivered >= 200, "the stream goes on", 120)
            insert_all(client, range(200, 250))
            wait_until(lambda: producer.delivered >= 250, "the stream goes on beside the node that came back", 120)
        assert {each["_id"] for each in client.shop.orders.find()} == set(range(250))
    assert keys_in_topic(kafka, settings.capture.name) == list(range(250))


def insert_all(client: MongoClient[dict[str, Any]], numbers: range) -> None:
    for number in numbers:
        while True:
            try:
                client.shop.orders.replace_one({"_id": number}, {}, upsert=True)
                break
            except PyMongoError:
                time.sleep(0.1)


@pytest.mark.parametrize("kind", ["postgresql", "redis", "mongodb"])
def test_a_store_that_is_killed_during_a_takeover(
    database: Any,
    tmp_path: Path,
    kind: str,
    start_server: Callable[..., Any],
    start_mongodb: Callable[..., ReplicaSet],
) -> None:
    """The holder has died, another one waits for its lease, and the store goes away meanwhile."""
    server: Any
    if kind == "mongodb":
        replica_set = start_mongodb()
        server, url = replica_set.primary, replica_set.uri
    else:
        server = start_server({"postgresql": Postgres, "redis": Redis}[kind])
        url = server.dsn if kind == "postgresql" else server.url
    harness = Harness(database.client, tmp_path, [f"{database.name}.orders"], store_url=url)
    harness.run_until_idle()
    with open_store(url) as store:
        store.acquire("orders", "host/1", seconds=6)
    database.orders.insert_many([{"_id": key} for key in range(50)])
    with harness.running() as producer:
        wait_until(lambda: "another process holds" in producer.status.liveness().proof, "it waits for the lease")
        server.kill()
        time.sleep(1)
        server.restart()
        wait_until(lambda: producer.delivered >= 50, "it takes over", 90)
        # And once more in the middle of its own term.
        server.kill()
        database.orders.insert_many([{"_id": key} for key in range(50, 100)])
        time.sleep(1)
        server.restart()
        wait_until(lambda: producer.delivered >= 100, "it goes on", 90)
    keys = [event["documentKey"]["_id"] for event in harness.events()]
    assert list(dict.fromkeys(keys)) == list(range(100))


@pytest.mark.long
def test_a_broker_that_is_away_while_the_primary_steps_down(
    start_mongodb: Callable[..., ReplicaSet], start_server: Callable[..., Any]
) -> None:
    """make crash"""
    replica_set, broker = start_mongodb(nodes=3), start_server(Kafka)
    settings = exactly_once(replica_set.uri, broker, lease_seconds=6)
    with replica_set.client(w="majority") as client, Capture.open(settings, client) as capture:
        capture.producer(stop_when_idle=True).run()
        with run_in_background(capture.producer()) as producer:
            insert_all(client, range(100))
            wait_until(lambda: producer.delivered >= 100, "the stream runs", 60)
            broker.kill()
            insert_all(client, range(100, 200))
            replica_set.step_down(5)
            insert_all(client, range(200, 300))
            broker.restart()
            wait_until(lambda: producer.delivered >= 300, "everything is delivered", 180)
    assert keys_in_topic(broker, settings.capture.name) == list(range(300))
