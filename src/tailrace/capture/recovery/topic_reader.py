"""Read what topics hold now, from their beginning to their end."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.capture.kafka_client import SECONDS_TO_ANSWER, KafkaAddress, describe
from tailrace.errors import SinkUnavailable

_MESSAGES_AT_ONCE = 5_000
_SECONDS_WITHOUT_A_MESSAGE = 60.0


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A record as it lies in a topic; `value` is None for a tombstone."""

    topic: str
    key: bytes
    value: bytes | None
    cluster_time: int
    """From its header; 0 when it has none."""


def topics_like(address: KafkaAddress, pattern: str) -> list[str]:
    """Give the names of the topics that match a regular expression as a whole."""
    consumer = _consumer(address)
    try:
        return sorted(
            name for name in consumer.list_topics(timeout=SECONDS_TO_ANSWER).topics if re.fullmatch(pattern, name)
        )
    except KafkaException as error:
        raise SinkUnavailable(f"Kafka at {address.servers} does not list its topics: {describe(error)}") from error
    finally:
        consumer.close()


def read_topics(address: KafkaAddress, topics: Sequence[str]) -> Iterator[TopicMessage]:
    """Give every committed record, in order inside each partition, up to where the topics end now."""
    consumer = _consumer(address)
    try:
        yield from _read(consumer, topics)
    except KafkaException as error:
        raise SinkUnavailable(f"Kafka at {address.servers} cannot be read: {describe(error)}") from error
    finally:
        consumer.close()


def _consumer(address: KafkaAddress) -> Consumer:
    return Consumer(
        address.config(
            group_id="tailrace-read-back",
            isolation_level="read_committed",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="earliest",
        )
    )


def _read(consumer: Consumer, topics: Sequence[str]) -> Iterator[TopicMessage]:
    found = consumer.list_topics(timeout=SECONDS_TO_ANSWER).topics
    parts = [(topic, number) for topic in topics if topic in found for number in found[topic].partitions]
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in parts])
    left = set(parts)
    heard = time.monotonic()
    while left:
        messages = consumer.consume(_MESSAGES_AT_ONCE, timeout=0.5)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > _SECONDS_WITHOUT_A_MESSAGE:
            raise SinkUnavailable(f"{', '.join(sorted({topic for topic, _ in left}))} cannot be read to the end")
        for message in messages:
            error = message.error()
            if error is None:
                yield _understood(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard((message.topic() or "", message.partition() or 0))
            else:
                raise KafkaException(error)


def _understood(message: Message) -> TopicMessage:
    headers: dict[str, Any] = dict(message.headers() or [])
    seconds, _, increment = (headers.get("clusterTime") or b"0:0").partition(b":")
    time_ = int(seconds) << 32 | int(increment)
    return TopicMessage(message.topic() or "", message.key() or b"", message.value(), time_)
