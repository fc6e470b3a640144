"""Topics that retention has cut know no longer which documents a consumer has: a recovery by them is refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pymongo.database import Database

from tailrace.capture.kafka_client import KafkaAddress
from tailrace.capture.positions import open_store
from tailrace.capture.producer.assembly import Capture
from tailrace.capture.producer.control import FirstStep
from tailrace.capture.recovery.gaps import GapLedger
from tailrace.capture.recovery.topic_reader import TopicContents
from tailrace.errors import InventoryMissing
from tailrace.settings import Settings
from tailrace.stand import Kafka, ReplicaSet
from waiting import SECONDS, wait_until


def test_records_that_retention_deleted_are_no_reason_to_pass_over_deletes(
    mongodb: ReplicaSet, database: Database[dict[str, Any]], kafka: Kafka, tmp_path: Any
) -> None:
    """By default topics forget after a week, and nothing in a gap that is closed would say so."""
    prefix = f"retention-{uuid.uuid4().hex[:8]}"
    settings = Settings.load(
        flags={
            "mongodb.uri": mongodb.uri,
            "capture.name": prefix,
            "capture.namespaces": (f"{database.name}.orders",),
            "capture.sink": f"kafka://{kafka.bootstrap_servers}",
            "capture.topic_prefix": prefix,
            "capture.partitions": 1,
            "capture.position_store": f"file:{tmp_path / 'positions'}",
        }
    )
    topic = f"{prefix}.{database.name}.orders"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    database.orders.insert_many([{"_id": key} for key in range(10)])
    with mongodb.client() as client, Capture.open(settings, client) as capture:
        capture.producer(stop_when_idle=True).run()
        admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0, 5)].result(SECONDS)
        database.orders.delete_one({"_id": 1})
        forecast = capture.recovery().forecast(capture.store.load(prefix))
        assert topic in forecast.to_json()["refused"], "a dry run says beforehand what the recovery will say"
        with pytest.raises(InventoryMissing, match=topic) as refused:
            capture.producer(stop_when_idle=True, first_step=FirstStep.RECOVER).run()
        assert "--from-now" in refused.value.hint
    with open_store(settings.capture.position_store.get_secret_value()) as store:
        assert GapLedger(store.cells, prefix).open_gap() is not None


@pytest.mark.long
def test_compaction_cuts_nothing(kafka: Kafka) -> None:
    """The beginning of a compacted topic stays where it is, whatever is compacted away. `make crash` runs it."""
    name = f"compacted-{uuid.uuid4().hex[:8]}"
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, config=config)])[name].result(SECONDS)
    contents = TopicContents(KafkaAddress(kafka.bootstrap_servers), [name])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    sent = 0

    def is_compacted() -> bool:
        nonlocal sent
        producer.produce(name, b"value", b"the same key")
        producer.flush(30)
        sent += 1
        left = list(TopicContents(KafkaAddress(kafka.bootstrap_servers), [name]).messages())
        return sent > 10 and len(left) < sent / 2

    wait_until(is_compacted, "records are compacted away", 180)
    assert contents.cut_topics() == []
