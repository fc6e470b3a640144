"""The topic of the positions is deleted while stores are open on it; `make crash` runs it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import pytest
from bson import Timestamp
from confluent_kafka.admin import AdminClient

from tailrace.capture.kafka_client import ensure_topic
from tailrace.capture.positions import Position, open_store
from tailrace.errors import LeaseLost, StoreUnavailable
from tailrace.stand import Kafka
from waiting import SECONDS, wait_until

pytestmark = pytest.mark.long
T = TypeVar("T")


def answered(call: Callable[[], T], seconds: float = 60.0) -> T:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.parametrize("made_again_by", ["the store", "somebody"])
def test_a_topic_that_was_deleted_holds_what_was_written_since(kafka: Kafka, made_again_by: str) -> None:
    topic = f"positions-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    url = f"kafka://{kafka.bootstrap_servers}/{topic}"
    with open_store(url) as store, open_store(url) as onlooker:
        lease = store.save(Position(None, Timestamp(5, 1)), store.acquire("orders", "here/1", seconds=600))
        assert onlooker.load("orders") is not None
        admin.delete_topics([topic])[topic].result(SECONDS)
        if made_again_by == "somebody":
            answered(lambda: ensure_topic(admin, topic, 1, {}))
        wait_until(lambda: answered(lambda: onlooker.load("orders")) is None, "the broker has forgotten it")
        # Whoever still has its fence writes down again where it is; one whose producer had to be replaced begins anew.
        try:
            answered(lambda: store.save(Position(None, Timestamp(7, 1)), lease))
        except LeaseLost:
            lease = answered(lambda: store.acquire("orders", "here/1", seconds=600))
            answered(lambda: store.save(Position(None, Timestamp(7, 1)), lease))
        found = answered(lambda: onlooker.load("orders"))
        assert found is not None
        assert (found.cluster_time, found.epoch) == (Timestamp(7, 1), lease.epoch)
