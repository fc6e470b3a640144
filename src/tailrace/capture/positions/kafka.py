"""Positions in Kafka: a compacted topic, where the fence of a transactional producer makes compare-and-set."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.capture.kafka_client import (
    SECONDS_TO_ANSWER,
    KafkaAddress,
    bounds_of,
    code_of,
    describe,
    ensure_topic,
    is_fenced,
    not_authorized,
)
from tailrace.capture.kafka_handover import Handover, open_handover
from tailrace.errors import LeaseLost, NotAuthorized, StoreUnavailable
from tailrace.logs import get_logger

DEFAULT_TOPIC = "tailrace-positions"
_COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024), "min.cleanable.dirty.ratio": "0.1"}
_GROUP = "tailrace-positions"
_CELL = "position/"
_TRAIL = "change/"
_TRANSACTIONS: Mapping[str, Any] = {
    "transaction_timeout_ms": 30_000,
    "delivery_report_only_error": True,  # a commit says that everything has arrived
}
_SECONDS_TO_BE_SURE = 60.0
"""How long one who decides waits for transactions that are open in the topic; they end after half of that."""
_SECONDS_TO_READ = 2.0
"""How long a reader without a lease waits for them: a commit's marker comes in milliseconds, a dead writer's never."""


_log = get_logger("tailrace.capture")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _in_turn(
    method: Callable[Concatenate[KafkaCells, _Parameters], _Result],
) -> Callable[Concatenate[KafkaCells, _Parameters], _Result]:
    """Let one thread at a time use the producers and the consumer."""

    @wraps(method)
    def waiting(self: KafkaCells, /, *arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        with self._turn:
            return method(self, *arguments, **options)

    return waiting


class KafkaCells:
    """Records of a compacted topic with one partition; the newest of a key is the cell.

    Kafka has no compare-and-set, but of all producers with one transactional id only the newest can commit. So a swap
    is: become the newest, read, compare, and commit; whoever became newer in between makes the commit fail. The
    exactly-once sink sends its records through the same producer: `begin_transaction` opens a transaction, and a swap
    inside `finishing` commits records and cell together.
    """

    def __init__(self, address: KafkaAddress, isolation_level: str = "read_committed") -> None:
        self._address = address
        self._isolation_level = isolation_level
        self.topic = address.topic or DEFAULT_TOPIC
        self._partition = TopicPartition(self.topic, 0, 0)
        self._written: dict[str, list[bytes]] = {}
        self._settings: dict[str, Mapping[str, Any]] = {}
        self._table: dict[str, bytes] = {}
        self._trails: dict[str, list[bytes]] = {}
        self._consumer: Consumer | None = None
        self._end_finder: Consumer
        self._read_to = 0
        self._known_end = 0
        """Where the topic ended when it was read last. It ends earlier only when it was deleted and made again."""
        self._producers: dict[str, Handover] = {}
        self._open: set[str] = set()
        self._in_transaction: set[str] = set()
        self._finishing: dict[str, int] = {}
        """The thread whose swap commits the records of a name."""
        self._turn = threading.RLock()

    @_in_turn
    def read(self, name: str) -> bytes | None:
        """Give the cell, or None when there is none.

        Inside an open transaction of this name the last known cell is given: a later one would have ended it.
        """
        if name not in self._open:
            self._refresh()
        return self._table.get(name)

    @_in_turn
    def swap(self, name: str, expected: bytes | None, cell: bytes, change: bytes | None) -> bool:
        """Commit the new cell, with all that was sent since `begin_transaction`, if nobody else has written this name.

        A transaction that carries records is committed inside `finishing` only: a lease that is renewed by the way, or
        by another thread, must not make them visible. And when it fails, nothing may take its place, because the
        records would be missing.
        """
        if name in self._in_transaction and self._finishing.get(name) != threading.get_ident():
            raise StoreUnavailable(f"records of {name} wait for their commit; the position moves with them")
        if name not in self._producers:
            self._refresh()
            if self._table.get(name) != expected:
                return False  # known without taking the fence from its holder
            self._fence(name)
            self._be_sure(name)
        if self._table.get(name) != expected:
            return False
        return self._commit(name, cell, change)

    def seconds_since_written(self, name: str, cell: bytes) -> float | None:
        """None: the timestamp of a record may be its producer's, and a broker does not report its time."""
        return None

    @_in_turn
    def changes(self, name: str, limit: int) -> list[bytes]:
        """Give the last changes, the newest first."""
        self._refresh()
        return self._trails.get(name, [])[::-1][:limit]

    @_in_turn
    def names(self) -> list[str]:
        """Give every name that has a cell."""
        self._refresh()
        return list(self._table)

    @_in_turn
    def close(self) -> None:
        """Close the connections; an open transaction is aborted."""
        for name in list(self._producers):
            self.abort(name)
            self._drop(name)
        self._unsubscribe()

    def holds_records(self, name: str) -> bool:
        """Whether a transaction of this name is open, or on its way to be committed."""
        return name in self._in_transaction

    def separate(self) -> KafkaCells:
        """Give the same cells over connections of their own, and not held up by a commit that waits for its records."""
        return KafkaCells(self._address, isolation_level="read_uncommitted")

    @_in_turn
    def begin_transaction(self, name: str) -> Handover:
        """Open a transaction for records, unless it is open, and give its producer; `finishing` commits it."""
        producer = self._begin(name)
        self._in_transaction.add(name)
        return producer

    @_in_turn
    def fence_again(self, name: str, settings: Mapping[str, Any]) -> None:
        """Replace the producer of this name by one with other settings of the client library."""
        self._drop(name)
        self._refresh()
        if self._is_taken_over(name):
            raise LeaseLost(f"another producer of {name} has taken over")
        self._settings[name] = settings
        self._fence(name)
        self._be_sure(name)

    @contextmanager
    def finishing(self, name: str) -> Iterator[None]:
        """Let the swap inside commit the records of the transaction together with its cell."""
        if name not in self._in_transaction:
            raise StoreUnavailable(f"there is no open transaction of {name}")
        self._finishing[name] = threading.get_ident()
        try:
            yield
        finally:
            del self._finishing[name]

    def _begin(self, name: str) -> Handover:
        if name not in self._producers:
            self._fence(name)
            self._be_sure(name)
        if name not in self._open:
            with self._answering():
                self._producers[name].begin_transaction()
            self._open.add(name)
        return self._producers[name]

    @_in_turn
    def abort(self, name: str) -> None:
        """Throw away what was sent since `begin_transaction`; a producer that cannot even do that is closed."""
        self._in_transaction.discard(name)
        if name in self._open:
            self._open.discard(name)
            try:
                self._producers[name].abort_transaction(SECONDS_TO_ANSWER)
            except KafkaException:
                self._drop(name)

    def _fence(self, name: str) -> None:
        """Become the newest producer of this name; what an older one left open is aborted by the broker."""
        settings = {**_TRANSACTIONS, "transactional_id": f"tailrace-{name}", **self._settings.get(name, {})}
        producer = open_handover(self._address, settings)
        with self._answering():
            producer.init_transactions(3 * SECONDS_TO_ANSWER)
        self._producers[name] = producer

    def _drop(self, name: str) -> None:
        """Let a producer go without `close`, which raises for a transaction that another process has ended."""
        self._open.discard(name)
        self._in_transaction.discard(name)
        producer = self._producers.pop(name, None)
        if producer:
            producer.purge()

    def _commit(self, name: str, cell: bytes, change: bytes | None) -> bool:
        try:
            producer = self._begin(name)
            records = {f"{_CELL}{name}": cell}
            self._written.setdefault(name, []).append(cell)
            if change is not None:
                records[f"{_TRAIL}{name}/{len(self._trails.get(name, ()))}"] = change
            for key, value in records.items():
                producer.produce(self.topic, value, key, partition=0)
            _finish(producer)
        except KafkaException as error:
            was_in_transaction = name in self._in_transaction
            if not is_fenced(error):
                self.abort(name)
            self._drop(name)
            if is_fenced(error) and not was_in_transaction:
                return False
            raise self._unavailable(error) from error
        self._open.discard(name)
        self._in_transaction.discard(name)
        for key, value in records.items():
            self._note(key, value)
        self._written[name] = [cell]
        return True

    def _is_taken_over(self, name: str) -> bool:
        """Whether another process has written the cell since this one did, or tried to without an answer."""
        return name in self._written and self._table.get(name) not in self._written[name]

    def _refresh(self, timeout: float = _SECONDS_TO_READ) -> bool:
        """Read up to what was the end of the topic when the call began, leaving out aborted transactions.

        A commit returns before its marker is in the topic, and until then its records, and all after them, are not
        readable. So they are waited for. Gives whether the end was reached.

        After an error the topic is read anew by other consumers: what these know of the cluster may be what was wrong.
        """
        with self._answering():
            try:
                return self._read_on(timeout)
            except KafkaException:
                self._unsubscribe()
                raise

    def _read_on(self, timeout: float) -> bool:
        consumer = self._consumer or self._subscribe()
        _, end = bounds_of(self._end_finder, self.topic, 0)
        is_another = end < self._known_end
        if is_another:
            _log.warning("positions_lost", topic=self.topic, records=self._known_end, left=end)
            self._table.clear()
            self._trails.clear()
            self._unsubscribe()
            consumer = self._subscribe()
        deadline = time.monotonic() + (_SECONDS_TO_BE_SURE if is_another else timeout)
        while self._read_to < end and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message:
                self._take(message)
        if is_another and self._read_to < end:
            raise StoreUnavailable(f"{self.topic} was made again, and cannot be read to its end")
        self._known_end = end
        return self._read_to >= end

    def _be_sure(self, name: str) -> None:
        """Read everything that counts for a decision, once this process holds the fence of the name."""
        if not self._refresh(_SECONDS_TO_BE_SURE):
            self._drop(name)
            raise StoreUnavailable(f"{self.topic} cannot be read to its end: a transaction stays open")

    def _subscribe(self) -> Consumer:
        ensure_topic(AdminClient(self._address.config()), self.topic, 1, _COMPACTED)
        # A consumer of committed records would say that the topic ends before a commit that has no marker yet.
        self._end_finder = Consumer(self._address.config(group_id=_GROUP, isolation_level="read_uncommitted"))
        consumer = Consumer(
            self._address.config(
                group_id=_GROUP,
                isolation_level=self._isolation_level,
                enable_auto_commit=False,
                enable_partition_eof=True,
                fetch_wait_max_ms=10,
                auto_offset_reset="earliest",
            )
        )
        consumer.assign([self._partition])
        self._consumer = consumer
        return consumer

    def _unsubscribe(self) -> None:
        if self._consumer:
            self._consumer.close()
            self._end_finder.close()
            self._consumer = None
            self._read_to = 0

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._note((message.key() or b"").decode(), message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            self._read_to = message.offset() or 0  # unlike a record's offset, this counts transaction markers
        else:
            raise KafkaException(error)

    def _note(self, key: str, value: bytes | None) -> None:
        if value is None:
            return
        if key.startswith(_CELL):
            self._note_cell(key.removeprefix(_CELL), value)
        elif key.startswith(_TRAIL):
            name, _, index = key.removeprefix(_TRAIL).rpartition("/")
            trail = self._trails.setdefault(name, [])
            if trail[int(index) : int(index) + 1] != [value]:
                del trail[int(index) :]
                trail.append(value)

    def _note_cell(self, name: str, cell: bytes) -> None:
        """Take a cell; one that is read late, and is older than what this process wrote since, changes nothing.

        One that cannot be read is kept as it is: reading that name is an error, reading others is not.
        """
        known = _counter(self._table.get(name))
        counter = _counter(cell)
        if known is None or counter is None or counter >= known:
            self._table[name] = cell

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: KafkaException) -> StoreUnavailable | NotAuthorized:
        needed = {
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on the transactional id tailrace-{capture.name}",
            KafkaError.GROUP_AUTHORIZATION_FAILED: f"Read on the group {_GROUP}",
        }.get(code_of(error), f"Read, Write or Create on the topic {self.topic}")
        return not_authorized(self._address, error, needed) or StoreUnavailable(
            f"Kafka at {self._address.servers} cannot keep positions: {describe(error)}"
        )


def _finish(producer: Handover) -> None:
    """Commit, trying again as long as the client library says that this may help."""
    deadline = time.monotonic() + 6 * SECONDS_TO_ANSWER
    while True:
        try:
            producer.commit_transaction(SECONDS_TO_ANSWER)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def _counter(cell: bytes | None) -> int | None:
    """Give the number that every cell has, and that grows with every change; None when there is none to be read."""
    with suppress(ValueError, TypeError, KeyError):
        return int(orjson.loads(cell)["counter"]) if cell is not None else None
    return None
