"""A producer that is asked to end at any point of a snapshot or a recovery goes on there, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from capture_harness import Harness, documents_of, run_in_background
from tailrace.capture.positions import open_store
from tailrace.capture.producer.producer import Producer
from tailrace.capture.recovery.gaps import GapLedger, GapState
from tailrace.errors import SinkUnavailable
from tailrace.retry import RetryPolicy
from tailrace.stand import ReplicaSet
from waiting import wait_until

ODD_NAMES = (
    "a b",
    "ä.ö",
    "x\ny\tz",
    "quote'\"`",
    "%41%",
    "(a|b)[c]*+?^\\",
    "_20",
    "..",
    "a..b",
    "\U0001f600",
    "ns\u2028end",
    "1",
    "true",
)


class EndAt:
    """Ask the producer to end when it comes to a point for the n-th time."""

    def __init__(self, point: str, times: int) -> None:
        self._point, self._left = point, times
        self.producer: Producer
        self.met = False

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                self.met = True
                self.producer.stop()


def run_and_end(harness: Harness, point: str, times: int) -> bool:
    """Run until the point is met, or all is done; gives whether it was met."""
    hook = EndAt(point, times)
    hook.producer = harness.producer(hook, stop_when_idle=True)
    hook.producer.run()
    return hook.met


SNAPSHOT_POINTS = ("opened", "rows", "before-chunk-done", "added", "acknowledged", "before-save")


def small_chunks(harness: Harness) -> None:
    harness.options |= {"chunk_bytes": 2_000, "snapshot_workers": 1}


@pytest.fixture
def orders(database: Database[dict[str, Any]]) -> Any:
    database.orders.insert_many([{"_id": key, "pad": "x" * 50} for key in range(300)])
    return database.orders


def test_an_end_at_every_point_of_a_snapshot(orders: Any, tmp_path: Path) -> None:
    harness = Harness(orders.database.client, tmp_path, [orders.full_name])
    small_chunks(harness)
    met = set()
    for number, point in enumerate(SNAPSHOT_POINTS * 3):
        orders.replace_one({"_id": number}, {"n": number})
        orders.delete_one({"_id": 299 - number})
        if run_and_end(harness, point, 1 + number % 3):
            met.add(point)
    assert met >= {"opened", "rows", "added"}
    harness.run_until_idle()
    assert harness.state() == documents_of(orders)


def test_an_end_at_every_point_of_a_recovery(start_mongodb: Callable[..., ReplicaSet], tmp_path: Path) -> None:
    replica_set = start_mongodb(oplog_mb=1)
    with replica_set.client() as client:
        orders = client.shop.orders
        orders.insert_many([{"_id": key, "pad": "x" * 50} for key in range(300)])
        harness = Harness(client, tmp_path, ["shop.orders"])
        small_chunks(harness)
        harness.run_until_idle()
        orders.delete_many({"_id": {"$lt": 50}})
        replica_set.roll_over_oplog()
        points = [(point, 1) for point in ("after-ledger", "recovery-begun", *SNAPSHOT_POINTS)]
        points += [(point, 2) for point in SNAPSHOT_POINTS]
        met = {point for point, times in points if run_and_end(harness, point, times)}
        assert met >= {"after-ledger", "opened", "rows"}
        harness.run_until_idle()
        assert harness.state() == documents_of(orders)
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        assert [gap.state for gap in GapLedger(store.cells, "orders").all()] == [GapState.CLOSED]


@pytest.mark.parametrize("kind", ["change-stream", "oplog"])
def test_collections_with_odd_names(database: Database[dict[str, Any]], tmp_path: Path, kind: str) -> None:
    """Snapshot, stream and restart; each name by itself and as part of a pattern."""
    names = []
    for name in ODD_NAMES:
        try:
            database[name].insert_one({"_id": name, "life": 1})
            names.append(name)
        except Exception:  # the driver or the server refuses the name
            continue
    assert len(names) > 8
    harness = Harness(database.client, tmp_path, [database.name], kind=kind)
    harness.run_until_idle()
    with run_in_background(harness.producer()) as producer:
        for name in names:
            database[name].update_one({"_id": name}, {"$set": {"life": 2}})
            database[name].insert_one({"_id": 1})
        wait_until(lambda: producer.delivered >= 3 * len(names), "all are delivered", 60)
    found = {(event["ns"]["coll"], event["operationType"]) for event in harness.events()}
    assert found == {(name, kind) for name in names for kind in ("read", "update", "insert")}
    for name in names[:4]:
        own = Harness(database.client, tmp_path / str(names.index(name)), [f"{database.name}.{name}"], kind=kind)
        own.run_until_idle()
        assert {event["ns"]["coll"] for event in own.events()} == {name}


def test_an_outage_longer_than_the_retry_budget_ends_the_producer_where_another_one_goes_on(
    orders: Any, tmp_path: Path
) -> None:
    """`capture.retry_seconds`: the error is told, the lease is given back, and the next process delivers everything."""
    harness = Harness(orders.database.client, tmp_path, [orders.full_name])
    harness.run_until_idle(start="now")
    orders.insert_one({"_id": "later"})
    away = True

    def hook(point: str) -> None:
        if point == "converted" and away:
            raise SinkUnavailable("nobody answers")

    spent = RetryPolicy(first=0.01, longest=0.05, budget=0.5)
    with pytest.raises(SinkUnavailable):
        harness.producer(hook, backoff=spent).run()
    with open_store(f"file:{tmp_path / 'positions'}") as store:
        assert store.holder("orders") is None
    away = False
    harness.producer(hook, backoff=spent, stop_when_idle=True).run()
    assert [event["documentKey"]["_id"] for event in harness.events()] == ["later"]
