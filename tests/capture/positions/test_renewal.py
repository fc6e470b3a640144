"""The lease of a producer that delivers exactly once, while its records wait for a commit: a real broker, real time.

`make crash` runs it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from bson import Timestamp
from confluent_kafka.admin import AdminClient

from tailrace.capture.kafka_client import ensure_topic
from tailrace.capture.positions import Position, PositionStore, open_store
from tailrace.capture.positions.kafka import KafkaCells
from tailrace.capture.positions.leader import Leader
from tailrace.errors import LeaseHeld, StoreUnavailable
from tailrace.owned import OwnedThread
from tailrace.stand import Kafka
from waiting import SECONDS as LIMIT

pytestmark = pytest.mark.long

SECONDS = 6.0
NAME = "orders"


@pytest.fixture
def store_url(kafka: Kafka) -> str:
    return f"kafka://{kafka.bootstrap_servers}/renewal-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def store(store_url: str) -> Iterator[PositionStore]:
    with open_store(store_url) as opened:
        yield opened


@pytest.fixture
def challenger(store_url: str) -> Iterator[PositionStore]:
    with open_store(store_url) as opened:
        yield opened


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"records-{uuid.uuid4().hex[:8]}"
    ensure_topic(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}), name, 1, {})
    return name


def try_for(challenger: PositionStore, seconds: float) -> None:
    challenger.wait_for_lease(NAME, "there/1", seconds=SECONDS, timeout=seconds)


def open_transaction(store: PositionStore, topic: str) -> KafkaCells:
    cells = store.cells
    assert isinstance(cells, KafkaCells)
    cells.begin_transaction(NAME).produce(topic, b"a record")
    return cells


def test_a_lease_is_kept_while_records_wait_for_their_commit(
    store: PositionStore, challenger: PositionStore, topic: str
) -> None:
    with Leader(store, store.acquire(NAME, "here/1", seconds=SECONDS)) as leader:
        cells = open_transaction(store, topic)
        with pytest.raises(LeaseHeld):
            try_for(challenger, 2.5 * SECONDS)
        assert challenger.load(NAME) is None, "nothing was committed by the way"
        with cells.finishing(NAME):
            leader.save(Position(None, Timestamp(5, 1)))
    saved = challenger.load(NAME)
    assert saved is not None
    assert saved.cluster_time == Timestamp(5, 1)


def test_a_lease_is_kept_while_a_commit_waits(store: PositionStore, challenger: PositionStore, topic: str) -> None:
    """It has the store and its connections for itself, and the new cell is sent: who reads what is committed waits."""
    begun, ends = threading.Event(), threading.Event()

    def commit() -> None:
        cells = open_transaction(store, topic)
        with store._turn, cells._turn:
            producer = cells.begin_transaction(NAME)
            producer.produce(cells.topic, b"a cell", "sent/orders", partition=0)
            producer.flush(60)
            begun.set()
            ends.wait(LIMIT)
            cells.abort(NAME)

    with Leader(store, store.acquire(NAME, "here/1", seconds=SECONDS)):
        waiting = OwnedThread(commit, name="commit")
        waiting.start()
        assert begun.wait(LIMIT)
        try:
            with pytest.raises(LeaseHeld):
                try_for(challenger, 2.5 * SECONDS)
        finally:
            ends.set()
            waiting.join(LIMIT)


def test_one_that_was_kept_beside_ends_with_its_holder_and_fences_it(
    store: PositionStore, challenger: PositionStore, topic: str
) -> None:
    leader = Leader(store, store.acquire(NAME, "here/1", seconds=SECONDS))
    cells = open_transaction(store, topic)
    renewed = leader._renew_meanwhile(leader.lease)
    assert renewed.asked_at > leader.lease.asked_at
    taken = challenger.wait_for_lease(NAME, "there/1", seconds=60, timeout=60)
    leader._renew_meanwhile(renewed)  # says nothing of the new one's lease
    with cells.finishing(NAME), pytest.raises(StoreUnavailable):
        leader.save(Position(None, Timestamp(5, 1)))
    challenger.renew(taken)
    assert challenger.load(NAME) is None
