"""Where events go that cannot be delivered, so that the stream can go on: a topic, a file, or nowhere.

A letter is safe when the call that wrote it returns: the position may then move past its event. After a crash an event
may be written twice.
"""

from __future__ import annotations

import base64
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import orjson

from tailrace.capture.formats.bson import BsonFormat
from tailrace.capture.record import Record
from tailrace.errors import EventUnconvertible, RecordRefused, SinkUnavailable, TailraceError

if TYPE_CHECKING:
    from tailrace.capture.kafka_client import KafkaAddress

TOPIC = "dead-letters"
"""The dead letters of a stream are in the topic `{prefix}.dead-letters`."""
FILE = "dead-letters.jsonl"
_read_event = BsonFormat().records


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that could not be delivered, and why."""

    key: bytes | None
    token: str
    """The hexadecimal digits of its resume token; empty when the event has none that can be read."""
    namespace: str
    operation: str
    cause: str
    """The stable code of the error."""
    message: str
    event: bytes
    """The raw BSON event."""
    at: datetime


class DeadLetters(ABC):
    """Takes events and records that cannot be delivered."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.count = 0
        """How many letters were written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, event: bytes, error: TailraceError) -> None:
        """Keep an event that no record could be made of."""
        try:
            record = _read_event(event)[0]
        except (EventUnconvertible, TailraceError):
            record = Record(None, None, [], "", "", event)
        self.add_record(record, error)

    def add_record(self, record: Record, error: TailraceError) -> None:
        """Keep the event of a record that the sink refuses."""
        token = dict(record.headers).get("token", b"").decode()
        at = datetime.fromtimestamp(self._clock(), UTC)
        letter = DeadLetter(
            record.key, token, record.namespace, record.operation, error.code, error.message, record.event, at
        )
        self._write(letter)
        self.count += 1

    @abstractmethod
    def _write(self, letter: DeadLetter) -> None:
        """Write the letter; it is safe when this returns."""

    def close(self) -> None:  # noqa: B027 - most have no connection
        """Give connections back."""


class NoDeadLetters(DeadLetters):
    """For those who would rather stop than go on without an event."""

    def _write(self, letter: DeadLetter) -> None:
        raise RecordRefused(
            f"an event of {letter.namespace or 'the stream'} cannot be delivered: {letter.message}",
            token=letter.token,
            cause=letter.cause,
        )


class FileDeadLetters(DeadLetters):
    """One JSON object a line in one file; the event is in it as base64 of its BSON."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self.path = folder / FILE

    def _write(self, letter: DeadLetter) -> None:
        line = orjson.dumps(
            {
                "at": letter.at.isoformat(),
                "cause": letter.cause,
                "message": letter.message,
                "namespace": letter.namespace,
                "operation": letter.operation,
                "token": letter.token,
                "key": base64.b64encode(letter.key or b"").decode(),
                "event": base64.b64encode(letter.event).decode(),
            }
        )
        with _disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())


class TopicDeadLetters(DeadLetters):
    """Messages of a topic: the event's BSON as value, the rest as headers.

    An event that is too large even for this topic is cut into messages that say which part they are.
    """

    def __init__(self, address: KafkaAddress, topic: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        from tailrace.capture.dead_letters.topic import LetterTopic

        self._topic = LetterTopic(address, topic)

    def _write(self, letter: DeadLetter) -> None:
        headers = [
            ("cause", letter.cause.encode()),
            ("message", letter.message.encode()),
            ("namespace", letter.namespace.encode()),
            ("operationType", letter.operation.encode()),
            ("token", letter.token.encode()),
            ("at", letter.at.isoformat().encode()),
        ]
        self._topic.write(letter.key, letter.event, headers)

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkUnavailable(f"cannot write dead letters to {path}: {error.strerror}") from error
