"""History that is lost while an exactly-once producer is away is recovered by a new process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bson import json_util
from confluent_kafka import Consumer
from pymongo.database import Database

from sink_sides import read_all
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.producer.control import FirstStep
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.settings import Settings
from tailrace.stand import Kafka, ReplicaSet


def test_a_new_process_finds_its_history_lost_before_it_has_sent_anything(
    start_mongodb: Callable[..., ReplicaSet], kafka: Kafka
) -> None:
    replica_set = start_mongodb(oplog_mb=1)
    settings = exactly_once(replica_set, kafka, "shop.orders")
    with replica_set.client() as client:
        client.shop.orders.insert_many([{"_id": key} for key in range(10)])
        run_until_idle(settings, client)
        client.shop.orders.delete_one({"_id": 3})
        replica_set.roll_over_oplog()
        run_until_idle(settings, client)
    assert documents_in(kafka, f"{settings.capture.name}.shop.orders") == {0, 1, 2, 4, 5, 6, 7, 8, 9}
    with open_store(settings.capture.position_store.get_secret_value()) as store:
        (gap,) = GapLedger(store.cells, settings.capture.name).all()
    assert (gap.state, gap.deletes) == (GapState.CLOSED, 1)


def exactly_once(replica_set: ReplicaSet, kafka: Kafka, namespace: str, flags: Mapping[str, Any] = {}) -> Settings:
    """A stream of its own, with its position beside its records."""
    name, brokers = f"once-{uuid.uuid4().hex[:8]}", f"kafka://{kafka.bootstrap_servers}"
    chosen = {
        "mongodb.uri": replica_set.uri,
        "capture.name": name,
        "capture.namespaces": (namespace,),
        "capture.sink": brokers,
        "capture.topic_prefix": name,
        "capture.partitions": 1,
        "capture.delivery": "exactly-once",
        "capture.position_store": f"{brokers}/{name}-positions",
    }
    return Settings.load(flags={**chosen, **flags})


def run_until_idle(settings: Settings, client: Any, first_step: FirstStep = FirstStep.GO_ON) -> None:
    """What a process does from its start to its end."""
    with Capture.open(settings, client) as capture:
        capture.producer(stop_when_idle=True, first_step=first_step).run()


def documents_in(kafka: Kafka, topic: str) -> set[int]:
    """The documents that a consumer of the topic has at its end."""
    servers = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "isolation.level": "read_committed"}
    consumer = Consumer({**servers, "enable.partition.eof": True})
    found: set[int] = set()
    try:
        for message in read_all(consumer, topic):
            event = json_util.loads(message.value())
            change = found.discard if event["operationType"] == "delete" else found.add
            change(event["documentKey"]["_id"])
    finally:
        consumer.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("source", ["change-stream", "oplog"])
def test_every_first_step_of_a_process_that_has_nothing_to_send(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], kafka: Kafka, source: str
) -> None:
    settings = exactly_once(mongodb, kafka, f"{database.name}.orders", {"capture.source": source})
    database.create_collection("orders")
    with mongodb.client() as client:
        for step in (FirstStep.GO_ON, *FirstStep, FirstStep.GO_ON):
            run_until_idle(settings, client, first_step=step)
        database.orders.insert_one({"_id": 1})
        run_until_idle(settings, client)
    assert documents_in(kafka, f"{settings.capture.name}.{database.name}.orders") == {1}
