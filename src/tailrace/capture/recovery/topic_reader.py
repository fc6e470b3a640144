"""Read what topics hold now, from their beginning to their end, once or again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.capture.kafka_client import (
    SECONDS_TO_ANSWER,
    KafkaAddress,
    bounds_of,
    describe,
    is_about_the_group,
    unavailable,
)
from tailrace.errors import SinkUnavailable
from tailrace.fold import Moment, moment_of
from tailrace.raw.cluster_time import ClusterTime

_MESSAGES_AT_ONCE = 5_000
_SECONDS_WITHOUT_A_MESSAGE = 60.0


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A record as it lies in a topic; `value` is None for a tombstone."""

    key: bytes
    value: bytes | None
    moment: Moment
    """From its headers; the very first one when it has none."""
    operation: str = ""
    """operationType, from its header."""
    to: str | None = None
    """The new name of a renamed collection, from its header."""


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


class TopicContents:
    """Every committed record that topics hold at the first reading, in order inside each partition.

    A later reading ends where the first one did, so that it gives the same records.
    """

    def __init__(self, address: KafkaAddress, topics: Sequence[str]) -> None:
        self._address = address
        self._topics = topics
        self._end_offsets: dict[tuple[str, int], int] = {}

    def cut_topics(self) -> list[str]:
        """Give the topics that do not begin with their first record any more: retention, or somebody, deleted some.

        Compaction alone leaves the beginning where it is, since it keeps the last record of each key.
        """
        consumer = _consumer(self._address)
        try:
            return sorted({topic for (topic, _), (low, _) in _bounds_now(consumer, self._topics).items() if low > 0})
        except KafkaException as error:
            raise unavailable(self._address, error, f"Read on the topics {', '.join(self._topics)}") from error
        finally:
            consumer.close()

    def messages(self) -> Iterator[TopicMessage]:
        """Give the records from the beginning."""
        consumer = _consumer(self._address)
        try:
            yield from self._read(consumer)
        except KafkaException as error:
            raise unavailable(self._address, error, f"Read on the topics {', '.join(self._topics)}") from error
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> Iterator[TopicMessage]:
        if not self._end_offsets:
            self._end_offsets = _end_offsets_now(consumer, self._topics)
        left = {part for part, end in self._end_offsets.items() if end > 0}
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in left])
        heard = time.monotonic()
        while left:
            messages = consumer.consume(_MESSAGES_AT_ONCE, timeout=0.5)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SECONDS_WITHOUT_A_MESSAGE:
                raise SinkUnavailable(f"{', '.join(sorted({topic for topic, _ in left}))} cannot be read to the end")
            for message in messages:
                part, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
                error = message.error()
                if error is not None and is_about_the_group(error):
                    continue
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if part not in left:
                    continue
                if error is not None:
                    # Before the end that was seen only where a transaction is open: its records do not count.
                    self._end_offsets[part] = min(offset, self._end_offsets[part])
                    left.discard(part)
                elif offset < self._end_offsets[part]:
                    yield _understood(message)
                if offset + 1 >= self._end_offsets[part]:
                    left.discard(part)


def _end_offsets_now(consumer: Consumer, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    return {part: high if high > low else 0 for part, (low, high) in _bounds_now(consumer, topics).items()}


def _bounds_now(consumer: Consumer, topics: Sequence[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """Give where each partition begins and ends."""
    found = consumer.list_topics(timeout=SECONDS_TO_ANSWER).topics
    parts = [(topic, number) for topic in topics if topic in found for number in found[topic].partitions]
    return {part: bounds_of(consumer, *part) for part in parts}


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


def _understood(message: Message) -> TopicMessage:
    headers: dict[str, Any] = dict(message.headers() or [])
    time = ClusterTime.from_text(headers.get("clusterTime") or b"0:0")
    moment = moment_of(time, (headers.get("token") or b"").decode())
    operation, to = (headers.get("operationType") or b"").decode(), headers.get("to")
    return TopicMessage(message.key() or b"", message.value(), moment, operation, None if to is None else to.decode())
