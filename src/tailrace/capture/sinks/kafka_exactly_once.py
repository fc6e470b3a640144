"""Records into Kafka exactly once: records and position in one transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError

from tailrace.capture.dead_letters.dead_letters import DeadLetters
from tailrace.capture.kafka_client import KafkaAddress, unavailable
from tailrace.capture.kafka_handover import Batch
from tailrace.capture.positions.kafka import KafkaCells
from tailrace.capture.positions.position import Position
from tailrace.capture.positions.store import Lease, PositionStore
from tailrace.capture.record import CompiledRecords, Record
from tailrace.capture.sinks.kafka import PRODUCER_SETTINGS, KafkaSink
from tailrace.capture.sinks.sink import DEFAULT_BUFFER_BYTES, TransactionalSink
from tailrace.capture.sinks.topics import TopicRule
from tailrace.errors import SettingsError, SinkUnavailable

_SECONDS_TO_DELIVER = 60.0
_PAUSE = 0.01


class KafkaTransactionSink(KafkaSink, TransactionalSink):
    """Sends through the transactional producer of the position store, which must be Kafka too.

    Whoever acquires the lease of the name fences the producer of the writer before: its transaction is aborted by the
    broker, and consumers that read committed records never see it. A consumer has to set `isolation.level` to
    `read_committed`. Dead letters are written outside of the transaction, so those may come twice.
    """

    def __init__(
        self,
        address: KafkaAddress,
        topics: TopicRule,
        dead_letters: DeadLetters,
        store: PositionStore,
        name: str,
        *,
        partitions: int = 6,
        topic_config: Mapping[str, str] | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        super().__init__(
            address,
            topics,
            dead_letters,
            partitions=partitions,
            topic_config=topic_config,
            buffer_bytes=buffer_bytes,
        )
        if not isinstance(store.cells, KafkaCells):
            raise SettingsError(
                "exactly-once delivery keeps the position in Kafka, with the records",
                hint="Set capture.position_store to kafka://... with the same brokers.",
            )
        self._store = store
        self._cells = store.cells
        self._name = name

    def setup(self) -> None:
        """Check that the brokers answer, and abort what an earlier sink of this process left open."""
        self._topics.connect()
        self._fence_again()

    def add(self, records: Sequence[Record]) -> int:
        """Send the records inside the open transaction; nobody sees them before the commit."""
        self._open_transaction()
        self._handover.poll(0)
        return super().add(records)

    def acknowledged(self) -> int:
        """Give how many records are committed; reports inside a transaction say nothing final."""
        return self._acknowledged

    def flush(self, timeout: float) -> int:
        """Wait until everything added has arrived; it is visible after `commit` only."""
        deadline = time.monotonic() + timeout
        while self._batches and len(self._handover):
            self._handover.flush(_PAUSE)
            self._handover.poll(0)
            failure = next((batch.failures[0] for batch in self._batches if batch.failures), None)
            if failure:
                raise unavailable(
                    self._address, failure[0], f"Write on the topic {self._topics.known[failure[1].namespace].name}"
                )
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"Kafka at {self._address.servers} did not acknowledge in {timeout:g} seconds")
        return self._acknowledged

    def commit(self, position: Position, lease: Lease) -> Lease:
        """Make the records and the position visible in one step.

        Nothing is waited for before: the position is sent right behind the records, and the client library commits
        when all of them have arrived, or refuses to.
        """
        self._cells.begin_transaction(self._name)
        with self._cells.finishing(self._name):
            renewed = self._store.save(position, lease)
        self._batches.clear()
        self._buffered = 0
        self._acknowledged = self._added
        return renewed

    def close(self) -> None:
        """Abort what is not committed; the producer belongs to the position store."""
        self._cells.abort(self._name)

    def _deliverable(self, records: Sequence[Record]) -> Sequence[Record]:
        """Sort out beforehand what the broker might refuse: one refused record would end the whole transaction."""
        limits = self._topics.known
        if isinstance(records, CompiledRecords) and not any(
            limits[namespace].may_refuse_some(records) for namespace in records.summary.namespaces
        ):
            return records
        kept = [record for record in records if not limits[record.namespace].may_refuse(record)]
        if len(kept) < len(records):
            for record in records:
                if limits[record.namespace].may_refuse(record):
                    self._dead_letter_record(record, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        return kept

    def _reconnect(self) -> None:
        """Go on with a producer that makes smaller batches; what is in the open transaction is sent again.

        It arrives first, although it is then aborted: the client library sometimes takes its whole timeout to abort
        what is still on its way to a topic that was just made.
        """
        self.flush(_SECONDS_TO_DELIVER)
        self._fence_again()
        self._open_transaction()
        for index, batch in enumerate(self._batches):
            # A new batch, because reports about the old records may still come.
            self._batches[index] = again = Batch(batch.records, batch.size, batch.count)
            self._handover.send(again, self._topics.known)

    def _open_transaction(self) -> None:
        self._handover = self._cells.begin_transaction(self._name)

    def _fence_again(self) -> None:
        self._cells.abort(self._name)
        # A transaction ends in bounded time, so its messages do as well.
        self._cells.fence_again(self._name, {**PRODUCER_SETTINGS, "batch_size": self._largest_batch})
