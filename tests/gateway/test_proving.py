"""A gateway before a server that it was never compared with: the upstream serves until the engine is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.running_gateway import RunningGateway
from hiding_proxy import HidingProxy
from tailrace.hub import Subscription
from tailrace.settings import EngineSettings
from waiting import wait_until

pytestmark = pytest.mark.mongodb("6.0.27", "7.0.28")
MADE_UP = {"6.0.27": "6.3.27", "7.0.28": "8.9.28"}


@pytest.fixture
def engine(tmp_path: Path) -> EngineSettings:
    return EngineSettings(matches=5, folder=tmp_path / "engine")


@pytest.fixture
def hidden(mongodb) -> Iterator[HidingProxy]:
    with HidingProxy(mongodb.primary.port, mongodb.version, MADE_UP[mongodb.version]) as proxy:
        yield proxy


@pytest.fixture
def gateway(hidden, engine) -> Iterator[RunningGateway]:
    running = RunningGateway(hidden.uri, engine=engine)
    yield running
    running.close()


class Orders:
    """Inserts one order after another."""

    def __init__(self, database) -> None:
        self._orders = database.orders
        self.count = 0

    def insert(self) -> None:
        self._orders.insert_one({"_id": self.count})
        self.count += 1


def test_the_upstream_serves_until_the_engine_is_trusted(gateway, database):
    orders = Orders(database)
    served = gateway.gateway.counts
    with gateway.client() as client, client[database.name].orders.watch() as early:
        assert served.left_to_upstream == 1
        wait_until(lambda: gateway.proof.is_serving, "the engine is never trusted", work=orders.insert)
        with client[database.name].orders.watch() as late:
            assert served.left_to_upstream == 1, "the second stream comes from the engine"
            first = orders.count
            for _ in range(5):
                orders.insert()
            assert [next(late)["documentKey"]["_id"] for _ in range(5)] == list(range(first, first + 5))
        assert [next(early)["documentKey"]["_id"] for _ in range(orders.count)] == list(range(orders.count))


def test_a_stream_goes_back_upstream_before_an_event_that_is_not_proved(gateway, database):
    orders = Orders(database)
    served = gateway.gateway.counts
    wait_until(lambda: gateway.proof.is_serving, "the engine is never trusted", work=orders.insert)
    begin = orders.count
    with gateway.client() as client, client[database.name].orders.watch(max_await_time_ms=50) as stream:
        left = served.left_to_upstream
        orders.insert()
        assert next(stream)["documentKey"] == {"_id": begin}
        assert served.left_to_upstream == left
        database.orders.update_one({"_id": begin}, {"$set": {"a.b": 1}})  # of a kind that nobody has compared
        orders.insert()
        assert next(stream)["operationType"] == "update"
        assert served.left_to_upstream == left + 1, "the driver resumed, and the upstream goes on with it"
        assert next(stream)["documentKey"] == {"_id": begin + 1}


def test_a_difference_keeps_the_engine_from_serving(hidden, engine, database, monkeypatch):
    """An engine whose inserts are wrong is found out, with the evidence in the folder, and the upstream goes on."""
    made = Subscription.poll

    def poll(self, *arguments):
        batch = made(self, *arguments)
        wrong = [event._replace(raw=event.raw.replace(b"orders", b"ORDERS")) for event in batch.events]
        batch.events[:] = wrong
        return batch

    monkeypatch.setattr(Subscription, "poll", poll)
    running = RunningGateway(hidden.uri, engine=engine)
    orders = Orders(database)
    try:
        wait_until(lambda: running.proof.by_trust().get("distrusted", 0) > 0, "nothing is noticed", work=orders.insert)
        with running.client() as client, client[database.name].orders.watch() as stream:
            begin = orders.count
            orders.insert()
            assert next(stream)["ns"] == {"db": database.name, "coll": "orders"}
            assert running.gateway.counts.left_to_upstream >= 1
            assert begin < orders.count
    finally:
        running.close()
    evidence = (engine.folder / "gateway-default-off.differences.jsonl").read_text()
    assert "insert/plain" in evidence
    assert '"server": "' in evidence
