"""Records into Kafka, at least once: pipelined, in order per key, acknowledged by all replicas."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError

from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.kafka_client import KafkaAddress, describe, is_refused, unavailable
from tailrace.capture.kafka_handover import Batch, Handover, open_handover
from tailrace.capture.record import Record, summary_of
from tailrace.capture.sinks.kafka_topics import TopicCatalogue
from tailrace.capture.sinks.sink import DEFAULT_BUFFER_BYTES, Sink
from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import Backpressure, RecordRefused, SinkUnavailable

_LARGEST_BATCH = 1_000_000
_PAUSE = 0.01
_AROUND = 700
"""Bytes that a record takes beyond its key and value, which exist here and in the library, and its event: headers,
token, and the objects around all of these. Seen by the memory of a process whose broker had stopped."""
_FLUSH_SECONDS = 0.001
"""Seconds in which the library's own thread wakes up; when it does not, records linger as long as they always do."""

PRODUCER_SETTINGS: Mapping[str, Any] = {
    "enable_idempotence": True,  # retries keep the order and make no duplicates
    "acks": "all",
    "linger_ms": 5,
    "compression_type": "lz4",
    "partitioner": "murmur2_random",  # the one of Java's clients, so that keys meet in the same partitions
    "message_max_bytes": 1_000_000_000,  # the limit of the topic counts, not one of the client's own
    "queue_buffering_max_messages": 10_000_000,
    "queue_buffering_max_kbytes": 2_097_151,  # what is buffered is bounded by this sink
}


class KafkaSink(Sink):
    """One idempotent producer. What it holds unacknowledged is bounded in bytes.

    A record that its topic's limit forbids goes to the dead letters; the records around it are not touched, because no
    batch of several records is ever larger than the limit.
    """

    def __init__(
        self,
        address: KafkaAddress,
        topics: TopicRule,
        dead_letters: DeadLetters,
        *,
        partitions: int = 6,
        topic_config: Mapping[str, str] | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        seconds_to_deliver: float = 0.0,
    ) -> None:
        """After `seconds_to_deliver` a record that no broker has taken has failed; 0 is never.

        The library sends in a thread of its own, also when a process that was stopped is continued.
        """
        self._seconds_to_deliver = seconds_to_deliver
        self._address = address
        self._dead_letters = dead_letters
        self._topics = TopicCatalogue(address, topics, partitions, topic_config or {})
        self._buffer_bytes = buffer_bytes
        self._largest_batch = _LARGEST_BATCH
        self._batches: deque[Batch] = deque()
        self._buffered = 0
        self._added = 0
        self._acknowledged = 0
        self._handover: Handover

    @property
    def dead_letters(self) -> int:
        """How many records went to the dead letters."""
        return self._dead_letters.count

    def setup(self) -> None:
        """Check that the brokers answer."""
        self._topics.connect()
        self._handover = self._connect()

    def add(self, records: Sequence[Record]) -> int:
        """Hand the records to the client library, which sends them in the background."""
        summary = summary_of(records)
        size = _AROUND * len(records) + 2 * (summary.key_bytes + summary.value_bytes) + summary.event_bytes
        self._check_capacity(size)
        self._learn_topics(summary.namespaces)
        batch = Batch(self._deliverable(records), size, len(records))
        self._batches.append(batch)
        self._buffered += size
        self._added += len(records)
        try:
            self._handover.send(batch, self._topics.known)
        except SinkUnavailable as error:
            raise self._topics.explained(error, summary.namespaces) from error
        return self._added

    def acknowledged(self) -> int:
        """Look at the delivery reports that have come."""
        self._handover.poll(0)
        batches = self._batches
        while batches and not batches[0].left:
            batch = batches[0]
            if batch.failures:
                self._dead_letter_refused(batch)
            batches.popleft()
            self._buffered -= batch.size
            self._acknowledged += batch.count
        return self._acknowledged

    def start_flush(self) -> None:
        """Send what lingers: waiting for company pays only while more is coming."""
        if self._batches:
            self._handover.flush(_FLUSH_SECONDS)

    def flush(self, timeout: float) -> int:
        """Wait for all delivery reports."""
        deadline = time.monotonic() + timeout
        self._handover.flush(0)  # sends what still lingers
        while self.acknowledged() < self._added:
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"Kafka at {self._address.servers} did not acknowledge in {timeout:g} seconds")
            self._handover.poll(_PAUSE)
        return self._acknowledged

    def close(self) -> None:
        """Drop what is not sent."""
        if hasattr(self, "_handover"):
            self._handover.purge()
            del self._handover

    def _connect(self) -> Handover:
        timeout_ms = round(self._seconds_to_deliver * 1000)
        settings = {"batch_size": self._largest_batch, "message_timeout_ms": timeout_ms}
        return open_handover(self._address, {**PRODUCER_SETTINGS, **settings})

    def _check_capacity(self, size: int) -> None:
        self.acknowledged()
        if self._batches and self._buffered + size > self._buffer_bytes:
            raise Backpressure(f"{self._buffered} bytes wait for Kafka's acknowledgement", retry_after=_PAUSE)

    def _learn_topics(self, namespaces: set[str]) -> None:
        """Know every topic before sending; a topic with a low limit makes all batches smaller."""
        for namespace in namespaces.difference(self._topics.known):
            topic = self._topics.learn(namespace)
            if topic.limit < self._largest_batch:
                self._largest_batch = topic.limit
                self._reconnect()

    def _reconnect(self) -> None:
        """Go on with a producer that makes smaller batches, after the old one has delivered everything."""
        self.flush(60.0)
        self._handover = self._connect()

    def _deliverable(self, records: Sequence[Record]) -> Sequence[Record]:
        """Give the records that are worth sending: here all, and the broker decides."""
        return records

    def _dead_letter_refused(self, batch: Batch) -> None:
        """Put what was refused to the dead letters; anything else that failed cannot be mended here."""
        while batch.failures:
            error, record = batch.failures[0]
            self._dead_letter_record(record, error)
            batch.failures.pop(0)

    def _dead_letter_record(self, record: Record, error: KafkaError) -> None:
        if not is_refused(error):
            needed = f"Write on the topic {self._topics.known[record.namespace].name}"
            failure = unavailable(self._address, error, needed)
            raise (
                self._topics.explained(failure, [record.namespace]) if isinstance(failure, SinkUnavailable) else failure
            )
        topic = self._topics.known[record.namespace]
        if not topic.may_refuse(record):
            raise RecordRefused(f"Kafka refuses a record for {topic.name}: {describe(error)}")
        text = f"the topic {topic.name} takes {topic.limit} bytes, the record has {len(record.value or b'')}"
        self._dead_letters.add_record(record, RecordRefused(f"{text}: {describe(error)}"))
