"""Dead letters: how many there are, and the newest, from the topic or the file that capture writes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.capture.dead_letters.dead_letters import FILE, TOPIC
from tailrace.capture.kafka_client import KafkaAddress, bounds_of, describe, is_about_the_group
from tailrace.dashboard.sources.topics import QUIET
from tailrace.dashboard.values import DeadLetter, DeadLetters
from tailrace.errors import SinkUnavailable
from tailrace.settings import CaptureSettings

NEWEST = 50
_SECONDS_TO_ANSWER = 3.0
_TAIL_BYTES = 512 * 1024


def dead_letters_source(settings: CaptureSettings) -> FileDeadLetters | TopicDeadLetters | None:
    """Give the source for what `capture.dead_letters` says; None where capture stops instead."""
    sink, setting = settings.sink.get_secret_value(), settings.dead_letters
    if setting == "stop":
        return None
    if setting == "topic" and sink.startswith("kafka:"):
        return TopicDeadLetters(KafkaAddress.parse(sink), f"{settings.topic_prefix}.{TOPIC}")
    folder = TOPIC if setting == "topic" else setting.removeprefix("file:").removeprefix("//")
    return FileDeadLetters(Path(folder) / FILE)


class FileDeadLetters:
    """Reads the end of a file; counts its lines as it grows."""

    name = "dead letters"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counted = 0
        self._lines = 0

    def poll(self) -> DeadLetters:
        """Give the last lines."""
        location = f"file:{self._path}"
        if not self._path.exists():
            return DeadLetters("capture", location, 0, [])
        self._count()
        with self._path.open("rb") as file:
            file.seek(max(0, self._counted - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
        newest = [_from_line(line) for line in lines[-NEWEST - 1 :] if line.startswith(b"{") and line.endswith(b"}")]
        return DeadLetters("capture", location, self._lines, newest[::-1][:NEWEST])

    def close(self) -> None:
        """Nothing stays open between polls."""

    def _count(self) -> None:
        if os.path.getsize(self._path) < self._counted:
            self._counted = self._lines = 0
        with self._path.open("rb") as file:
            file.seek(self._counted)
            while block := file.read(1 << 20):
                self._lines += block.count(b"\n")
                self._counted += len(block)


class TopicDeadLetters:
    """Reads the end of a topic, whenever it has grown."""

    name = "dead letters"

    def __init__(self, address: KafkaAddress, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._consumer: Consumer | None = None
        self._end = -1
        self._newest: list[DeadLetter] = []

    def poll(self) -> DeadLetters:
        """Give the newest messages; a topic that is not there has none."""
        try:
            return self._poll()
        except KafkaException as error:
            raise SinkUnavailable(f"Kafka at {self._address.servers}: {describe(error)}") from None

    def close(self) -> None:
        """Leave the cluster."""
        consumer, self._consumer, self._end = self._consumer, None, -1
        if consumer is not None:
            consumer.close()

    def _poll(self) -> DeadLetters:
        if self._consumer is None:
            self._consumer = Consumer(
                self._address.config(group_id="tailrace-dashboard", enable_auto_commit=False) | QUIET
            )
        consumer, location = self._consumer, f"topic {self._topic}"
        if self._topic not in consumer.list_topics(timeout=_SECONDS_TO_ANSWER).topics:
            return DeadLetters("capture", location, 0, [])
        low, high = bounds_of(consumer, self._topic, 0)
        if high != self._end:
            self._newest = [_from_message(message) for message in _last(consumer, self._topic, low, high)][::-1]
            self._end = high
        return DeadLetters("capture", location, high - low, self._newest)


def _last(consumer: Consumer, topic: str, low: int, high: int) -> Iterator[Message]:
    """Give the last messages before an offset, in order."""
    if high <= low:
        return
    consumer.assign([TopicPartition(topic, 0, max(low, high - NEWEST))])
    deadline = time.monotonic() + _SECONDS_TO_ANSWER
    found: deque[Message] = deque(maxlen=NEWEST)
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is not None and is_about_the_group(error):
            continue
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                break
            raise KafkaException(error)
        found.append(message)
        if (message.offset() or 0) >= high - 1:
            break
    consumer.unassign()
    yield from found


def _from_message(message: Message) -> DeadLetter:
    raw: dict[str, Any] = dict(message.headers() or [])
    headers = {name: (data or b"").decode(errors="replace") for name, data in raw.items()}
    return _dead_letter(headers, headers.get("operationType", ""), len(message.value() or b""))


def _from_line(line: bytes) -> DeadLetter:
    form = orjson.loads(line)
    return _dead_letter(form, form.get("operation", ""), len(form.get("event", "")) * 3 // 4)


def _dead_letter(form: Mapping[str, str], operation: str, size: int) -> DeadLetter:
    at = form.get("at")
    return DeadLetter(
        at=datetime.fromisoformat(at).timestamp() if at else None,
        cause=form.get("cause", ""),
        message=form.get("message", ""),
        namespace=form.get("namespace", ""),
        operation=operation,
        token=form.get("token", ""),
        bytes=size,
    )
