"""The topics of a sink: made when they are missing, and known with their limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.capture.kafka_client import (
    SECONDS_TO_ANSWER,
    KafkaAddress,
    TopicLimits,
    ensure_topic,
    is_fatal,
    lacking,
    may_write,
    unavailable,
)
from tailrace.capture.record import CompiledRecords, Record
from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import NotAuthorized, SettingsError, SinkUnavailable

_FRAMING = 200
"""Bytes around a record in a batch, at most."""
_HEADERS = 300
"""Bytes of the headers that the kernel makes, at most and without the token."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists, and how large a batch it takes."""

    name: str
    limit: int

    def may_refuse(self, record: Record) -> bool:
        """Whether the record is so large that it depends on compression whether the broker takes it."""
        headers = sum(len(name) + len(value) + 10 for name, value in record.headers)
        return len(record.key or b"") + len(record.value or b"") + headers + _FRAMING > self.limit

    def may_refuse_some(self, records: CompiledRecords) -> bool:
        """Whether one of the records may be so large: cheap to know of a batch, and seldom so."""
        return records.largest + _HEADERS + _FRAMING > self.limit


class TopicCatalogue:
    """Topics by namespace."""

    def __init__(self, address: KafkaAddress, rule: TopicRule, partitions: int, config: Mapping[str, str]) -> None:
        self._address = address
        self._rule = rule
        self._partitions = partitions
        self._config = config
        self._admin = AdminClient(address.config())
        self._limits = TopicLimits(self._admin)
        self.known: dict[str, Topic] = {}

    def connect(self) -> None:
        """Ask the brokers for their topics once, so that a wrong address shows at once."""
        try:
            self._admin.list_topics(timeout=SECONDS_TO_ANSWER)
        except KafkaException as error:
            raise unavailable(self._address, error) from error

    def explained(self, error: SinkUnavailable, namespaces: Iterable[str]) -> SinkUnavailable | NotAuthorized:
        """Give the error of a producer that ended; the ACL that is missing, where that is why."""
        if is_fatal(error.details.get("kafka_code")):
            for name in sorted({self.known[namespace].name for namespace in namespaces}):
                if not may_write(self._admin, name):
                    return lacking(self._address, f"Write on the topic {name}", error.message)
        return error

    def learn(self, namespace: str) -> Topic:
        """Find the topic of a namespace, and make it if it is missing."""
        name = self._rule.topic(namespace)
        for other, known in self.known.items():
            if known.name == name and self._rule.confuses(namespace, other):
                raise SettingsError(
                    f"{other} and {namespace} would share the topic {name}",
                    hint="Give one of them another topic (a transform of kind rename-topic), or capture it by itself.",
                )
        try:
            ensure_topic(self._admin, name, self._partitions, self._config)
            topic = Topic(name, self._limits.of(name))
        except KafkaException as error:
            raise unavailable(self._address, error, f"Create on the topic {name}, or Write if it is there") from error
        self.known[namespace] = topic
        return topic
