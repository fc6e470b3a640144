"""How batches of records are handed to Kafka's client library, and what became of them.

Two ways with one contract: record by record through Python's client; and whole batches through the compiled kernel,
which calls the same library. `docs/performance.md` says what each costs.
"""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace import kernel
from tailrace.capture.kafka_address import TOKEN_CALLBACK
from tailrace.capture.kafka_client import KafkaAddress, code_of
from tailrace.capture.record import CompiledRecords, Record
from tailrace.errors import SettingsError, SinkUnavailable
from tailrace.logs import get_logger

_ANY_PARTITION = -1
_NOW = 0
_SECONDS_FOR_CAPACITY = 1.0
_SECONDS_BETWEEN_REPORTS = 0.05
"""How long a commit waits that fails because of a record; one that succeeds waits for no report."""
_SYSLOG_LEVELS = (logging.CRITICAL,) * 3 + (logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
_log = logging.getLogger("tailrace.kafka")
_Failure = tuple[int, str, bool, bool, bool]
"""An error of a transaction: code, text, and whether it is fatal, may be tried again, and asks for an abort."""


class Topic(Protocol):
    """What is to be known of a topic here."""

    @property
    def name(self) -> str:
        """Its name."""


class Batch:
    """Records that were added together; acknowledged when each has its delivery report.

    `count` is how many were added, `records` those of them that were sent.
    """

    __slots__ = ("count", "failures", "left", "records", "size")

    def __init__(self, records: Sequence[Record], size: int, count: int) -> None:
        self.records = records
        self.size = size
        self.count = count
        self.left = len(records)
        self.failures: list[tuple[KafkaError, Record]] = []

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Take the delivery report of one record; those that failed are few, so they are searched for."""
        self.left -= 1
        if error is not None:
            sent = message.key(), message.value()
            record = next(record for record in self.records if (record.key, record.value) == sent)
            self.failures.append((error, record))


class Handover(ABC):
    """Takes batches in order, and writes into each what became of its records.

    With a transactional id it makes transactions too; their steps raise KafkaException.
    """

    def __init__(self, address: KafkaAddress, producer: Any) -> None:
        self._address = address
        self._producer = producer

    @abstractmethod
    def send(self, batch: Batch, topics: Mapping[str, Topic]) -> None:
        """Hand over the records of a batch; SinkUnavailable when the library takes no more."""

    @abstractmethod
    def poll(self, timeout: float) -> None:
        """Take the delivery reports that have come; wait up to `timeout` seconds for the first."""

    def flush(self, timeout: float) -> None:
        """Send at once what lingers, and wait up to `timeout` seconds for its delivery."""
        self._producer.flush(timeout)

    def purge(self) -> None:
        """Drop what is not sent."""
        self._producer.purge()

    def __len__(self) -> int:
        """How many records have not arrived yet, or have failed without a poll that took the report."""
        return len(self._producer)

    @abstractmethod
    def init_transactions(self, timeout: float) -> None:
        """Fence older producers of the same transactional id, and end what they left open."""

    @abstractmethod
    def begin_transaction(self) -> None:
        """Open a transaction."""

    @abstractmethod
    def produce(self, topic: str, value: bytes, key: str | None = None, partition: int = _ANY_PARTITION) -> None:
        """Hand over one record that is part of no batch."""

    @abstractmethod
    def commit_transaction(self, timeout: float) -> None:
        """Wait until everything has arrived, and commit it."""

    @abstractmethod
    def abort_transaction(self, timeout: float) -> None:
        """Drop what is not sent, and abort the transaction."""


def open_handover(address: KafkaAddress, settings: Mapping[str, Any]) -> Handover:
    """Connect by the kernel where it runs and may call the library, else by Python's client.

    The kernel refuses a library whose version it does not know, or that does not give back a record as it was given. It
    cannot be called back for tokens.
    """
    config = address.config(**settings)
    compiled, library = kernel.module(), _library()
    try:
        if compiled is not None and library is not None and TOKEN_CALLBACK not in config:
            try:
                return CompiledHandover(address, compiled, library, config)
            except NotImplementedError as refusal:
                get_logger("tailrace.kafka").warning("kernel_handover_refused", why=str(refusal))
        return ClientHandover(address, Producer(config))
    except (KafkaException, ValueError) as error:
        raise SettingsError(
            f"Kafka's client library refuses its settings: {error}", hint="Correct the parameters of its URL."
        ) from error


@cache
def _library() -> str | None:
    """Find the library inside the wheel of Python's client."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    return next((str(file) for file in sorted(folder.glob("librdkafka*.so*"))), None)


class ClientHandover(Handover):
    """Record by record through Python's client."""

    def send(self, batch: Batch, topics: Mapping[str, Topic]) -> None:
        """Hand over record after record; with arguments by position that takes a quarter less than by name."""
        produce, report = self._producer.produce, batch.report
        try:
            for key, value, headers, namespace, _, _ in batch.records:
                name = topics[namespace].name
                try:
                    produce(name, value, key, _ANY_PARTITION, report, None, _NOW, headers)
                except BufferError:
                    self._producer.poll(_SECONDS_FOR_CAPACITY)
                    produce(name, value, key, _ANY_PARTITION, report, None, _NOW, headers)
        except (KafkaException, BufferError) as error:
            code = code_of(error) if isinstance(error, KafkaException) else KafkaError._QUEUE_FULL
            raise SinkUnavailable(
                f"Kafka at {self._address.servers} takes no records: {error}", kafka_code=code
            ) from error

    def poll(self, timeout: float) -> None:
        """Let the library call `Batch.report`."""
        self._producer.poll(timeout)

    def init_transactions(self, timeout: float) -> None:
        """Fence older producers."""
        self._producer.init_transactions(timeout)

    def begin_transaction(self) -> None:
        """Open a transaction."""
        self._producer.begin_transaction()

    def produce(self, topic: str, value: bytes, key: str | None = None, partition: int = _ANY_PARTITION) -> None:
        """Hand over one record."""
        self._producer.produce(topic, value, key, partition)

    def commit_transaction(self, timeout: float) -> None:
        """Commit."""
        self._producer.commit_transaction(timeout)

    def abort_transaction(self, timeout: float) -> None:
        """Abort."""
        self._producer.abort_transaction(timeout)


class CompiledHandover(Handover):
    """Whole batches through the kernel, which counts their delivery reports."""

    def __init__(self, address: KafkaAddress, compiled: Any, library: str, config: Mapping[str, Any]) -> None:
        settings = [(name, _text(value)) for name, value in config.items() if name != "logger"]
        super().__init__(address, compiled.KafkaProducer(library, [*settings, ("log.queue", "true")]))
        self._batches: dict[int, Batch] = {}
        self._numbers = itertools.cycle(range(1, 2**32))

    def send(self, batch: Batch, topics: Mapping[str, Topic]) -> None:
        """Hand over a batch; while the library's queue is full, delivery reports make room."""
        if not batch.records:
            return
        number = next(self._numbers)
        self._batches[number] = batch
        if isinstance(batch.records, CompiledRecords):
            send = partial(self._producer.send_batch, number, batch.records.compiled)
        else:
            send = partial(self._producer.send, number, list(batch.records))
        sent, is_second_try = 0, False
        while True:
            before = sent
            sent, code = send(topics, sent)
            if not code:
                return
            is_second_try = is_second_try and sent == before
            if code != self._producer.QUEUE_FULL or is_second_try:
                error = KafkaError(code)
                raise SinkUnavailable(f"Kafka at {self._address.servers} takes no records: {error}", kafka_code=code)
            is_second_try = True
            self.poll(_SECONDS_FOR_CAPACITY)

    def poll(self, timeout: float) -> None:
        """Count what was delivered and note what failed."""
        delivered, failures, lines = self._producer.poll(timeout)
        for number, index, code in failures:
            batch = self._batches.get(number)
            if batch is not None:
                batch.failures.append((KafkaError(code), batch.records[index]))
                self._count(number, 1)
        for number, count in delivered:
            self._count(number, count)
        for level, line in lines:
            _log.log(_SYSLOG_LEVELS[level], "%s", line)

    def _count(self, number: int, reports: int) -> None:
        batch = self._batches.get(number)  # there is none for single records, nor for those of an ended transaction
        if batch is not None:
            batch.left -= reports
            if not batch.left:
                del self._batches[number]

    def init_transactions(self, timeout: float) -> None:
        """Fence older producers."""
        self._check(self._producer.init_transactions(timeout))

    def begin_transaction(self) -> None:
        """Open a transaction."""
        self._check(self._producer.begin_transaction())

    def produce(self, topic: str, value: bytes, key: str | None = None, partition: int = _ANY_PARTITION) -> None:
        """Hand over one record."""
        code = self._producer.send_one(topic, partition, key.encode() if key is not None else None, value)
        if code:
            raise KafkaException(KafkaError(code))

    def commit_transaction(self, timeout: float) -> None:
        """Commit."""
        self._end_transaction(self._producer.commit_transaction, timeout)

    def abort_transaction(self, timeout: float) -> None:
        """Abort."""
        self._end_transaction(self._producer.abort_transaction, timeout)

    def _end_transaction(self, end: Callable[[float], _Failure | None], timeout: float) -> None:
        """Wait for the end of a transaction; the library goes on with it when it is asked once more.

        It waits until all reports are taken, and cannot take them by itself.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.poll(0)
            left = deadline - time.monotonic()
            failure = end(max(0.0, min(left, _SECONDS_BETWEEN_REPORTS)))
            if failure is None or failure[0] != KafkaError._TIMED_OUT or left <= 0:
                break
        self._check(failure)
        self._batches.clear()

    @staticmethod
    def _check(failure: _Failure | None) -> None:
        if failure is not None:
            raise KafkaException(KafkaError(*failure))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
