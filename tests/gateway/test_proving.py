"""A gateway before a server that it was never compared with: the upstream serves until the engine is trusted."""

from __future__ import annotations

import threading
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
        with _stream_of_the_engine(gateway, client, database, orders) as late:
            first = orders.count
            for _ in range(5):
                orders.insert()
            assert [next(late)["documentKey"]["_id"] for _ in range(5)] == list(range(first, first + 5))
        assert [next(early)["documentKey"]["_id"] for _ in range(orders.count)] == list(range(orders.count))


def test_a_stream_goes_back_upstream_before_an_event_that_is_not_proved(gateway, database):
    orders = Orders(database)
    served = gateway.gateway.counts
    wait_until(lambda: gateway.proof.is_serving, "the engine is never trusted", work=orders.insert)
    with gateway.client() as client, _stream_of_the_engine(gateway, client, database, orders) as stream:
        left, begin = served.left_to_upstream, orders.count
        orders.insert()
        assert next(stream)["documentKey"] == {"_id": begin}
        assert served.left_to_upstream == left
        database.orders.update_one({"_id": begin}, {"$set": {"a.b": 1}})  # of a kind that nobody has compared
        orders.insert()
        assert next(stream)["operationType"] == "update"
        assert served.left_to_upstream == left + 1, "the driver resumed, and the upstream goes on with it"
        assert next(stream)["documentKey"] == {"_id": begin + 1}


def _stream_of_the_engine(gateway, client, database, orders):
    """Open a stream that the engine serves: positions between events may be trusted later than events."""
    opened = []

    def is_from_the_engine() -> bool:
        left = gateway.gateway.counts.left_to_upstream
        stream = client[database.name].orders.watch(max_await_time_ms=50)
        if gateway.gateway.counts.left_to_upstream == left:
            opened.append(stream)
            return True
        stream.close()
        return False

    wait_until(is_from_the_engine, "the engine never serves", work=orders.insert)
    return opened[0]


def _wrong(monkeypatch, is_wrong) -> None:
    """Let the engine's side of each trial be wrong, when that is said; clients read in another way."""
    made = Subscription.poll

    def poll(self, *arguments):
        batch = made(self, *arguments)
        if is_wrong() and threading.current_thread().name.startswith("engine-trial"):
            batch.events[:] = [each._replace(raw=each.raw.replace(b"orders", b"ORDERS")) for each in batch.events]
        return batch

    monkeypatch.setattr(Subscription, "poll", poll)


def test_a_difference_that_is_found_between_two_batches_ends_the_stream_before_the_next(gateway, database, monkeypatch):
    """And for good: what the client has had from the engine and what the upstream gives are all, each once."""
    planted = threading.Event()
    _wrong(monkeypatch, planted.is_set)
    orders = Orders(database)
    served = gateway.gateway.counts
    with gateway.client() as client, _stream_of_the_engine(gateway, client, database, orders) as stream:
        left, begin = served.left_to_upstream, orders.count
        orders.insert()
        assert next(stream)["documentKey"] == {"_id": begin}
        planted.set()
        gateway.proof._plain.unsettle()  # as an event of a new kind in another stream does
        wait_until(lambda: gateway.proof.by_trust().get("distrusted", 0), "nothing is noticed", work=orders.insert)
        planted.clear()
        seen = [next(stream) for _ in range(orders.count - begin - 1)]
        assert [each["documentKey"]["_id"] for each in seen] == list(range(begin + 1, orders.count))
        assert served.left_to_upstream == left + 1
        with client[database.name].orders.watch() as another:
            assert served.left_to_upstream == left + 2, "a kind that differed once is not trusted again"
            orders.insert()
            assert next(another)["documentKey"] == {"_id": orders.count - 1}


def test_an_upstream_that_goes_away_during_the_proof_costs_nobody_an_event(hidden, gateway, database, monkeypatch):
    """All connections break again and again, while the engine is on trial and then when it is found to be wrong."""
    planted = threading.Event()
    _wrong(monkeypatch, planted.is_set)
    orders = Orders(database)
    proof = gateway.proof

    def insert_and_cut() -> None:
        orders.insert()
        if orders.count % 3 == 0:
            hidden.cut()

    with gateway.client(serverSelectionTimeoutMS=30_000) as client:
        stream = client[database.name].orders.watch(max_await_time_ms=50)
        with stream:
            wait_until(lambda: proof.is_serving, "the engine is never trusted", work=insert_and_cut)
            assert [next(stream)["documentKey"]["_id"] for _ in range(orders.count)] == list(range(orders.count))
            begin = orders.count
            with _stream_of_the_engine(gateway, client, database, orders) as of_the_engine:
                seen = [next(stream)["documentKey"]["_id"] for _ in range(begin, orders.count)]
                assert seen == list(range(begin, orders.count))
                begin = orders.count
                planted.set()
                proof._plain.unsettle()
                wait_until(lambda: proof.by_trust().get("distrusted", 0), "nothing is noticed", work=insert_and_cut)
                for each in (stream, of_the_engine):
                    seen = [next(each)["documentKey"]["_id"] for _ in range(begin, orders.count)]
                    assert seen == list(range(begin, orders.count))


def test_a_difference_keeps_the_engine_from_serving(hidden, engine, database, monkeypatch):
    """An engine whose inserts are wrong is found out, with the evidence in the folder, and the upstream goes on."""
    _wrong(monkeypatch, lambda: True)
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
