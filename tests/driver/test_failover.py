"""Elections, crashes, freezes and bad networks under load: every event exactly once, in order, and no error."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import bson
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from fault_proxies import FaultProxy
from tailrace.driver import watch
from tailrace.stand import Node, ReplicaSet

SECONDS_PER_FAULT = 60
PAUSE = 0.3
"""How long a frozen node or a broken network stays so."""
CLIENT_OPTIONS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 2_000,
    "connectTimeoutMS": 2_000,
    # What a half-open connection needs to be noticed; a getMore itself waits for a tenth of it.
    "socketTimeoutMS": 2_000,
    "heartbeatFrequencyMS": 500,
}


class Writer(threading.Thread):
    """Inserts 0, 1, 2, ... one after the other, whatever happens to the servers.

    The number is the `_id`: a write that failed is tried again, and one that had succeeded without the client
    knowing it changes nothing. A majority has to have each: what a lost primary alone had is rolled back.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(daemon=True)
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri, **CLIENT_OPTIONS)
        self._stopping = threading.Event()
        self.written = 0

    def run(self) -> None:
        orders = self._client.shop.get_collection("orders", write_concern=WriteConcern("majority"))
        while not self._stopping.is_set():
            try:
                orders.update_one({"_id": self.written}, {"$setOnInsert": {"n": 1}}, upsert=True)
            except PyMongoError:
                time.sleep(0.02)
                continue
            self.written += 1
            time.sleep(0.002)

    def stop(self) -> int:
        self._stopping.set()
        self.join(SECONDS_PER_FAULT)
        self._client.close()
        return self.written


class Reader(threading.Thread):
    """Reads the stream with a resume budget and keeps what it saw."""

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self._stream = watch(client.shop.orders, resume_for=timedelta(seconds=120), max_await_time_ms=200)
        self.seen: list[int] = []
        self.error: BaseException | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            with self._stream:
                for batch in self._stream.batches():
                    self.seen += [bson.decode(event)["documentKey"]["_id"] for event in batch.events]
                    if self._stopping.is_set():
                        return
        except BaseException as error:
            self.error = error

    def wait_past(self, number: int) -> None:
        """Wait until the stream has given this event."""
        deadline = time.monotonic() + SECONDS_PER_FAULT
        while not (self.seen and self.seen[-1] >= number):
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"the stream stands at {self.seen[-1:]}, not past {number}"
            time.sleep(0.01)

    def stop(self) -> list[int]:
        self._stopping.set()
        self.join(SECONDS_PER_FAULT)
        if self.error is not None:
            raise self.error
        return self.seen


class Faults:
    """What can happen to a replica set of three, each until it is well again."""

    def __init__(self, servers: ReplicaSet) -> None:
        self._servers = servers

    def step_down(self) -> None:
        self._servers.step_down(1)

    def kill(self) -> None:
        primary = self._servers.primary
        primary.kill()
        primary.restart()

    def freeze(self) -> None:
        """A frozen primary looks like one that is slow; long enough, and another is elected."""
        with frozen(self._servers.primary):
            time.sleep(PAUSE)

    def freeze_until_elected(self) -> None:
        old = self._servers.primary
        with frozen(old):
            time.sleep(2.5)


def frozen(node: Node) -> Any:
    """A node that is stopped inside and goes on afterwards."""

    class Frozen:
        def __enter__(self) -> None:
            node.pause()

        def __exit__(self, *error: object) -> None:
            node.resume()

    return Frozen()


def run_faults(reader: Reader, writer: Writer, faults: Iterator[Callable[[], None]], count: int) -> None:
    """Let faults happen one after the other; after each, writing and reading must go on."""
    for fault in itertools.islice(faults, count):
        fault()
        before = writer.written
        deadline = time.monotonic() + SECONDS_PER_FAULT
        while writer.written <= before:
            assert time.monotonic() < deadline, f"nothing can be written after {fault.__name__}"
            time.sleep(0.01)
        reader.wait_past(before)


def check(reader: Reader, writer: Writer) -> None:
    written = writer.stop()
    reader.wait_past(written - 1)
    seen = reader.stop()
    assert seen == list(range(len(seen)))
    assert len(seen) >= written


def failovers(servers: ReplicaSet, count: int) -> None:
    faults = Faults(servers)
    # Most are step-downs, the fault that happens most; the others cost seconds each.
    kinds = [*[faults.step_down] * 6, faults.kill, faults.freeze, faults.freeze, faults.freeze_until_elected]
    order = random.Random(4)
    endless = (order.choice(kinds) if turn >= len(kinds) else kinds[turn] for turn in itertools.count())
    with servers.client(**CLIENT_OPTIONS) as client:
        client.shop.create_collection("orders")
        reader, writer = Reader(client), Writer(servers.uri)
        reader.start()
        writer.start()
        run_faults(reader, writer, endless, count)
        check(reader, writer)


def network_faults(server: ReplicaSet, proxy: FaultProxy, count: int) -> None:
    def cut() -> None:
        proxy.cut()

    def cut_in_a_message() -> None:
        proxy.cut_after(500)
        time.sleep(PAUSE)
        proxy.heal()

    def refuse() -> None:
        proxy.refuse()
        proxy.cut()
        time.sleep(PAUSE)
        proxy.heal()

    def half_open() -> None:
        """Connections stay open and silent for longer than the client waits, then everything arrives."""
        proxy.black_hole()
        time.sleep(2.5)
        proxy.heal()

    def slow() -> None:
        proxy.delay(0.05)
        time.sleep(PAUSE)
        proxy.heal()

    kinds = [cut, cut_in_a_message, refuse, half_open, slow, *[cut, cut_in_a_message, refuse] * 3]
    uri = f"mongodb://{proxy.address}/?directConnection=true"
    with MongoClient[dict[str, Any]](uri, **CLIENT_OPTIONS) as client:
        client.shop.create_collection("orders")
        reader, writer = Reader(client), Writer(server.uri)
        reader.start()
        writer.start()
        run_faults(reader, writer, itertools.cycle(kinds), count)
        check(reader, writer)


def test_failovers(start_mongodb: Callable[..., ReplicaSet]) -> None:
    failovers(start_mongodb("6.0.5", nodes=3), 10)


def test_network_faults(start_mongodb: Callable[..., ReplicaSet], fault_proxy: Callable[[int], FaultProxy]) -> None:
    server = start_mongodb("6.0.5")
    network_faults(server, fault_proxy(server.primary.port), 14)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["4.2.6", "6.0.27"])
def test_100_faults(
    version: str, start_mongodb: Callable[..., ReplicaSet], fault_proxy: Callable[[int], FaultProxy]
) -> None:
    """`make failover`: sixty elections, crashes and freezes, and forty network faults."""
    failovers(start_mongodb(version, nodes=3), 60)
    server = start_mongodb(version)
    network_faults(server, fault_proxy(server.primary.port), 40)
