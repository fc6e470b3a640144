"""Faults while the engine proves itself: killed servers, elections and killed producers lose and repeat nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, PyMongoError

from hiding_proxy import HidingProxy
from tailrace.capture.source.proving import ProofOptions, ProvingSource, Side
from tailrace.capture.source.source import ClusterAccess, ComparableSource, Selection, Start
from tailrace.errors import TailraceError
from tailrace.owned import OwnedThread
from tailrace.proof import LedgerFile, TrustLedger
from tailrace.stand import ReplicaSet

OPERATIONS = ("insert", "update", "replace", "delete")
ROUNDS = 3


class Writer:
    """Makes the same four changes to one document after another, through every fault."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        self._replica_set = replica_set
        self._stopping = threading.Event()
        self._thread = OwnedThread(self._run, name="writer")

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with self._replica_set.client(serverSelectionTimeoutMS=500) as client:
            orders = client.shop.orders
            changes: dict[str, Callable[[int], object]] = {
                "insert": lambda number: orders.insert_one({"_id": number, "a": [1, 2], "n": {"m": 1}}),
                "update": lambda number: orders.update_one({"_id": number}, {"$set": {"n.m": number + 2}}),
                "replace": lambda number: orders.replace_one({"_id": number}, {"b": number}),
                "delete": lambda number: orders.delete_one({"_id": number}),
            }
            for number in range(1_000_000):
                for operation in OPERATIONS:
                    while not self._is_made(changes[operation], number):
                        if self._stopping.wait(0.05):
                            return
                if self._stopping.wait(0.002):
                    return

    @staticmethod
    def _is_made(change: Callable[[int], object], number: int) -> bool:
        """Make a change; one that was made although its answer was lost may be made twice."""
        try:
            change(number)
        except DuplicateKeyError:
            return True
        except PyMongoError:
            return False
        return True


class Producer:
    """Reads as a producer does: what it was given is handed on, and behind it a new one goes on after any failure."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self._ledger = LedgerFile(folder, "engine")
        self.events: list[bytes] = []
        self.position: bytes | None = None
        self.side: Side | None = None

    def read(self, is_over: Callable[[], bool]) -> None:
        """Read until it is over, opening the stream anew whenever it fails."""
        while not is_over():
            with MongoClient[Any](self._uri, serverSelectionTimeoutMS=2_000) as client:
                try:
                    for _ in self._batches(client):
                        if is_over():
                            return
                except (TailraceError, PyMongoError):
                    continue

    def read_more(self, count: int) -> None:
        """Read so many events."""
        enough = len(self.events) + count
        self.read(lambda: len(self.events) >= enough)

    def _batches(self, client: MongoClient[Any]) -> Iterator[None]:
        source = ProvingSource(
            client, Selection(max_await_ms=100), ClusterAccess(self._uri), self._make_ledger, ProofOptions(20, 1)
        )
        start = source.now()[0] if self.position is None else self.position
        self.position = start
        stream = source.open(Start(start))
        try:
            for batch in stream.batches():
                self.events += batch.events
                self.position = batch.token or self.position
                self.side = source.side
                yield
        finally:
            stream.close()

    def _make_ledger(self, server: str, presumes: bool) -> TrustLedger:
        assert not presumes
        return TrustLedger(server, 20, saved=self._ledger.read(), save=self._ledger.save)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", ["killed server", "election", "killed producer"])
def test_faults_at_the_switches_lose_and_repeat_nothing(
    fault: str, start_mongodb: Callable[..., ReplicaSet], tmp_path: Path
) -> None:
    """Run by `make crash`: the fault comes while the server serves, and again when the engine has taken over."""
    replica_set = start_mongodb("6.0.27")
    node = replica_set.primary

    def strike() -> None:
        if fault == "killed server":
            node.kill()
            node.restart()
        elif fault == "election":
            replica_set.step_down(5)

    with HidingProxy(node.port, "6.0.27", "6.3.27") as hidden, replica_set.client() as admin:
        admin.shop.create_collection("orders")
        producer = Producer(hidden.uri, tmp_path)
        producer.read(lambda: producer.position is not None)
        begun = producer.position
        assert begun is not None
        served: list[Side | None] = []
        for _ in range(ROUNDS):
            with Writer(replica_set):
                producer.read_more(20)
                served.append(producer.side)
                strike()
                producer.side = None  # the stream is left, and opened anew behind what was handed on
                producer.read(lambda: producer.side is Side.ENGINE)
                strike()
                producer.read_more(200)
            _drain(producer, admin)
            assert producer.events == _served_by(admin, begun, len(producer.events))
    assert Side.ENGINE in served, "after the first round the engine serves from the start"


def _drain(producer: Producer, admin: MongoClient[Any]) -> None:
    """Read up to a mark that is written behind everything else."""
    admin.shop.marks.insert_one({})
    producer.read(lambda: bson.decode(producer.events[-1])["ns"]["coll"] == "marks")
    admin.shop.orders.drop()
    producer.read(lambda: bson.decode(producer.events[-1])["operationType"] == "drop")


def _served_by(admin: MongoClient[Any], start: bytes, count: int) -> list[bytes]:
    """Give what the server's own stream has behind a position."""
    stream = ComparableSource(admin, Selection(max_await_ms=100)).open(Start(start))
    found: list[bytes] = []
    for batch in stream.batches():
        found += batch.events
        if not batch.events and len(found) >= count:
            break
    stream.close()
    return found
