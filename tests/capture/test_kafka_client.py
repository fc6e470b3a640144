"""What a broker answers while it settles a new topic is waited out."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.capture.kafka_client import KafkaAddress, bounds_of
from tailrace.stand import Kafka
from waiting import SECONDS


class _BeforeTheLeader(Consumer):  # type: ignore[misc]
    """A consumer whose first questions come before the partition's leader knows that it is one."""

    questions = 0

    def get_watermark_offsets(self, *args: Any, **options: Any) -> Any:
        self.questions += 1
        if self.questions < 3:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return super().get_watermark_offsets(*args, **options)


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"settling-{uuid.uuid4().hex[:8]}"
    brokers = {"bootstrap.servers": kafka.bootstrap_servers}
    admin = AdminClient(brokers)
    admin.create_topics([NewTopic(name, 1, 1)], request_timeout=60)[name].result(SECONDS)
    producer = Producer(brokers)
    producer.produce(name, b"value")
    producer.flush(60)
    return name


def test_a_partition_without_a_leader_yet_is_asked_again(kafka: Kafka, topic: str) -> None:
    consumer = _BeforeTheLeader({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})
    try:
        assert bounds_of(consumer, topic, 0) == (0, 1)
        assert consumer.questions == 3
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("query", "longest"),
    [("", 1_000), ("?reconnect.backoff.max.ms=300", "300"), ("?reconnect.backoff.ms=5000", None)],
)
def test_a_broker_that_is_back_is_found_within_a_second_unless_the_url_says_otherwise(
    query: str, longest: int | str | None
) -> None:
    config = KafkaAddress.parse(f"kafka://127.0.0.1:1{query}").config(group_id="g")
    assert config.get("reconnect.backoff.max.ms") == longest
    Consumer(config).close()
