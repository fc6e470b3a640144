"""A topic that takes messages of any size, one at a time and safely; large ones in parts."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from tailrace.capture.kafka_client import SECONDS_TO_ANSWER, KafkaAddress, TopicLimits, ensure_topic, unavailable
from tailrace.errors import SinkUnavailable

_PARTITIONS = 1
_SECONDS_TO_WRITE = 60.0


class DeadLetterTopic:
    """Writes are rare and each is waited for, so that a dead letter is durable before the stream goes on."""

    def __init__(self, address: KafkaAddress, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._producer: Producer | None = None
        self._part_size = 0

    def write(self, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        """Write a message, cut into parts if it must be; it is durable when this returns."""
        try:
            producer = self._producer or self._connect()
            size = max(1, self._part_size - len(key or b"") - sum(len(name) + len(data) + 10 for name, data in headers))
            parts = [value[begin : begin + size] for begin in range(0, len(value), size)] or [b""]
            failures: list[KafkaError] = []

            def report(error: KafkaError | None, _: Message) -> None:
                if error is not None:
                    failures.append(error)

            for number, part in enumerate(parts, 1):
                part_header = [("part", b"%d/%d" % (number, len(parts)))] if len(parts) > 1 else []
                producer.produce(self._topic, part, key, on_delivery=report, headers=[*headers, *part_header])
            waiting = producer.flush(_SECONDS_TO_WRITE)
            if failures:
                raise KafkaException(failures[0])
        except KafkaException as error:
            self.close()  # the topic may be gone: the next try looks for it again
            raise unavailable(self._address, error, f"Create or Write on the topic {self._topic}") from error
        if waiting:
            producer.purge()
            self.close()
            raise SinkUnavailable(f"the topic {self._topic} of dead letters does not answer")

    def close(self) -> None:
        """Close the connections."""
        self._producer = None

    def _connect(self) -> Producer:
        admin = AdminClient(self._address.config())
        ensure_topic(admin, self._topic, _PARTITIONS, {})
        limit = TopicLimits(admin).of(self._topic)
        self._part_size = max(1, limit - 1000)
        self._producer = Producer(
            self._address.config(
                enable_idempotence=True,
                acks="all",
                message_max_bytes=1_000_000_000,
                batch_size=max(1, limit // 2),
                socket_timeout_ms=int(SECONDS_TO_ANSWER * 1000),
            )
        )
        return self._producer
