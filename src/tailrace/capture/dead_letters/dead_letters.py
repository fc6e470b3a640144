"""Where events go that cannot be delivered, so that the stream can go on: a topic, a file, or nowhere.

A dead letter is durable when the call that wrote it returns: the position may then move past its event. After a crash
an event may be written twice.
"""

from __future__ import annotations

import base64
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from tailrace.capture.formats.bson import BsonFormat
from tailrace.capture.record import Record
from tailrace.errors import EventUnconvertible, RecordRefused, SinkUnavailable, TailraceError
from tailrace.event import ChangeEvent
from tailrace.owned.closeable import Closeable
from tailrace.proof import Difference
from tailrace.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from tailrace.capture.kafka_address import KafkaAddress

TOPIC = "dead-letters"
"""The dead letters of a stream are in the topic `{prefix}.dead-letters`."""
FILE = "dead-letters.jsonl"
ENGINE_DIFFERS = "engine-differs"
"""The cause of letters that hold the two sides of a comparison, as a BSON document with `server` and `engine`."""
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


class DeadLetters(Closeable):
    """Takes events and records that cannot be delivered."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._log = RateLimitedLog()
        self.count = 0
        """How many letters were written."""

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
        dead_letter = DeadLetter(
            record.key, token, record.namespace, record.operation, error.code, error.message, record.event, at
        )
        self._write(dead_letter)
        self.count += 1
        self._log.warning(
            "dead_letter_written", namespace=record.namespace, operation=record.operation, cause=error.code
        )

    def add_difference(self, difference: Difference) -> None:
        """Keep the evidence that the engine made an event differently; the event itself was delivered all the same."""
        at = datetime.fromtimestamp(self._clock(), UTC)
        made = difference.server if difference.server is not None else difference.engine
        token, namespace = _whereabouts(made or b"")
        self._write(
            DeadLetter(
                None,
                token,
                namespace,
                difference.kind.operation,
                ENGINE_DIFFERS,
                difference.message,
                difference.evidence(),
                at,
            )
        )
        self.count += 1

    @abstractmethod
    def _write(self, dead_letter: DeadLetter) -> None:
        """Write the letter; it is durable when this returns."""

    def close(self) -> None:
        """Give connections back."""


class NoDeadLetters(DeadLetters):
    """For those who would rather stop than go on without an event."""

    def add_difference(self, difference: Difference) -> None:
        """Keep nothing: no event is missing, and the log has told of it."""

    def _write(self, dead_letter: DeadLetter) -> None:
        raise RecordRefused(
            f"an event of {dead_letter.namespace or 'the stream'} cannot be delivered: {dead_letter.message}",
            token=dead_letter.token,
            cause=dead_letter.cause,
        )


class FileDeadLetters(DeadLetters):
    """One JSON object a line in one file; the event is in it as base64 of its BSON."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self.path = folder / FILE

    def _write(self, dead_letter: DeadLetter) -> None:
        line = orjson.dumps(
            {
                "at": dead_letter.at.isoformat(),
                "cause": dead_letter.cause,
                "message": dead_letter.message,
                "namespace": dead_letter.namespace,
                "operation": dead_letter.operation,
                "token": dead_letter.token,
                "key": base64.b64encode(dead_letter.key or b"").decode(),
                "event": base64.b64encode(dead_letter.event).decode(),
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
        from tailrace.capture.dead_letters.topic import DeadLetterTopic

        self._topic = DeadLetterTopic(address, topic)

    def _write(self, dead_letter: DeadLetter) -> None:
        headers = [
            ("cause", dead_letter.cause.encode()),
            ("message", dead_letter.message.encode()),
            ("namespace", dead_letter.namespace.encode()),
            ("operationType", dead_letter.operation.encode()),
            ("token", dead_letter.token.encode()),
            ("at", dead_letter.at.isoformat().encode()),
        ]
        self._topic.write(dead_letter.key, dead_letter.event, headers)

    def close(self) -> None:
        """Close the connections."""
        self._topic.close()


def _whereabouts(event: bytes) -> tuple[str, str]:
    """Give the token and namespace of an event, as far as they can be read."""
    try:
        found = ChangeEvent(event)
        return found.token_text.decode(), found.namespace
    except TailraceError:
        return "", ""


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkUnavailable(f"cannot write dead letters to {path}: {error.strerror}") from error
