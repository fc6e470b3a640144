"""The topics that capture writes: the newest records of each, and how fast they grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.capture.dead_letters.dead_letters import TOPIC as DEAD_LETTERS
from tailrace.capture.kafka_client import KafkaAddress, bounds_of, describe, is_about_the_group
from tailrace.capture.sinks.topics import DEFAULT_TEMPLATE, TopicRule
from tailrace.dashboard.answers import EventLine, ObservedEvent
from tailrace.dashboard.record_view import as_json, key_of, namespace_of, summary_of, wall_time_of
from tailrace.errors import SinkUnavailable
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import CaptureSettings

QUIET = {"log_level": 2}
"""A broker that is away is shown on the page, not in the log."""
_MESSAGES_AT_ONCE = 400
_SECONDS_OF_A_POLL = 0.25
_SECONDS_TO_ANSWER = 3.0
_SECONDS_BETWEEN_LISTINGS = 2.0
_FIRST_RECORDS = 5
"""How many of the records that were there before are shown, of each partition."""
_FARTHEST_BEHIND = 5_000
"""Beyond this many unread records the newest are jumped to: a page cannot show more than a person can read."""


@dataclass(frozen=True, slots=True)
class TopicsReading:
    """What the topics hold."""

    topics: int
    partitions: int
    records: int
    """Where the topics end: grows with every record."""
    newest_at: float | None
    """When the newest record that was read happened."""
    skipped: int
    """Records that were jumped over because there were too many."""


class TopicsSource:
    """Follows the topics without a consumer group: it leaves no trace in the cluster."""

    name = "kafka"

    def __init__(self, settings: CaptureSettings, add: Callable[[ObservedEvent], object]) -> None:
        self._address = KafkaAddress.parse(settings.sink.get_secret_value())
        self._rule = TopicRule(settings.topic_prefix, settings.topic or DEFAULT_TEMPLATE)
        self._add = add
        self._consumer: Consumer | None = None
        self._ends: dict[tuple[str, int], int] = {}
        self._locations: dict[tuple[str, int], int] = {}
        self._listed_at = 0.0
        self._newest: float | None = None
        self._skipped = 0

    def poll(self) -> TopicsReading:
        """Read what is new, for a quarter of a second."""
        try:
            consumer = self._consumer or self._connect()
            if time.monotonic() - self._listed_at > _SECONDS_BETWEEN_LISTINGS:
                self._assign_new(consumer)
            self._read(consumer)
        except KafkaException as error:
            raise SinkUnavailable(f"Kafka at {self._address.servers}: {describe(error)}") from None
        topics = {topic for topic, _ in self._ends}
        return TopicsReading(len(topics), len(self._ends), sum(self._ends.values()), self._newest, self._skipped)

    def close(self) -> None:
        """Leave the cluster."""
        consumer, self._consumer = self._consumer, None
        self._ends, self._locations, self._listed_at = {}, {}, 0.0
        if consumer is not None:
            consumer.close()

    def _connect(self) -> Consumer:
        self._consumer = Consumer(
            self._address.config(
                group_id="tailrace-dashboard",
                enable_auto_commit=False,
                isolation_level="read_committed",
                enable_partition_eof=False,
                fetch_message_max_bytes=1_048_576,
                queued_max_messages_kbytes=8_192,
                fetch_wait_max_ms=100,
            )
            | QUIET
        )
        return self._consumer

    def _assign_new(self, consumer: Consumer) -> None:
        """Take in topics and partitions that were not there before; later ones are read from their start."""
        is_first = self._listed_at == 0.0
        listed = consumer.list_topics(timeout=_SECONDS_TO_ANSWER).topics
        dead_letters = f"{self._rule.prefix}.{DEAD_LETTERS}"
        found = {
            (name, number)
            for name, topic in listed.items()
            if name != dead_letters and re.fullmatch(self._rule.pattern, name)
            for number in topic.partitions
        }
        for part in sorted(found - self._ends.keys()):
            low, high = bounds_of(consumer, *part)
            self._ends[part] = high
            self._locations[part] = max(low, high - _FIRST_RECORDS) if is_first else low
            consumer.incremental_assign([TopicPartition(*part, self._locations[part])])
        for part in self._ends.keys() - found:
            del self._ends[part], self._locations[part]
            consumer.incremental_unassign([TopicPartition(*part)])
        self._listed_at = time.monotonic()

    def _read(self, consumer: Consumer) -> None:
        if not self._ends:
            return
        messages = consumer.consume(_MESSAGES_AT_ONCE, timeout=_SECONDS_OF_A_POLL)
        for message in messages:
            error = message.error()
            if error is not None and is_about_the_group(error):
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            self._locations[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
            event = observed(message, self._rule.prefix)
            if event is not None:
                self._newest = max(self._newest or 0.0, event.line.at)
                self._add(event)
        self._refresh_ends(consumer)
        self._catch_up(consumer)

    def _refresh_ends(self, consumer: Consumer) -> None:
        for part, end in self._ends.items():
            _, high = consumer.get_watermark_offsets(TopicPartition(*part), cached=True)
            self._ends[part] = max(end, high or 0, self._locations[part])

    def _catch_up(self, consumer: Consumer) -> None:
        behind = sum(end - self._locations[part] for part, end in self._ends.items())
        if behind < _FARTHEST_BEHIND:
            return
        for part, end in self._ends.items():
            location = max(self._locations[part], end - _FIRST_RECORDS)
            if location > self._locations[part]:
                self._skipped += location - self._locations[part]
                self._locations[part] = location
                consumer.seek(TopicPartition(*part, location))


def observed(message: Message, prefix: str) -> ObservedEvent | None:
    """Make an event of a record; None for what no producer of ours wrote, and for tombstones."""
    headers: dict[str, Any] = dict(message.headers() or [])
    value = message.value()
    if "operationType" not in headers or "clusterTime" not in headers or value is None:
        return None
    at = ClusterTime.from_text(headers["clusterTime"] or b"0:0")
    record = as_json(value)
    wall = wall_time_of(record)
    _, milliseconds = message.timestamp()
    topic = message.topic() or ""
    line = EventLine(
        number=0,
        at=wall if wall is not None else float(at.seconds),
        observed_at=time.time(),
        operation=headers["operationType"].decode(),
        namespace=namespace_of(record) or topic.removeprefix(f"{prefix}."),
        key=key_of(message.key()),
        summary=summary_of(record),
        cluster_time=f"{at.seconds},{at.increment}",
        bytes=len(value),
    )
    return ObservedEvent(
        line=line,
        cluster_time=at,
        resolution=0.001 if wall is not None else 1.0,
        arrived_at=milliseconds / 1_000 if milliseconds > 0 else None,
        token=(headers.get("token") or b"").decode(),
        value=value,
        source=f"{topic}, partition {message.partition()}, offset {message.offset()}",
        headers={name: (data or b"").decode(errors="replace") for name, data in headers.items()},
    )
