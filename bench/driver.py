"""Our driver beside a raw getMore loop and pymongo's own `watch()`, on the same events in the same run.

    python bench/driver.py [--events 300000] [--rounds 3] [--inserts 300]

The machine's other work falls on all rivals alike, because they take turns; only the ratios mean something.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from statistics import median, quantiles
from typing import Any

import bson
from bson import Timestamp
from pymongo import AsyncMongoClient, MongoClient

from tailrace.driver import watch
from tailrace.stand import ReplicaSet

Client = MongoClient[dict[str, Any]]


class RawLoop:
    """A getMore loop on a bare socket that looks at nothing but where a reply ends."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def command(self, document: dict[str, Any]) -> bytearray:
        body = bson.encode(document)
        self._socket.sendall(struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body)
        return self._receive(struct.unpack("<i", self._receive(16)[:4])[0] - 16)

    def _receive(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view, got = memoryview(buffer), 0
        while got < size:
            got += self._socket.recv_into(view[got:])
        return buffer

    def close(self) -> None:
        self._socket.close()


def drain_raw(client: Client, start: Timestamp, count: int) -> None:
    assert client.address
    loop = RawLoop(client.address[1])
    stage = {"$changeStream": {"startAtOperationTime": start}}
    opening = {"aggregate": "orders", "pipeline": [stage], "cursor": {"batchSize": 0}, "$db": "bench"}
    opened = bson.decode(bytes(loop.command(opening)[5:]))
    more = {"getMore": opened["cursor"]["id"], "collection": "orders", "$db": "bench"}
    for _ in range(replies_for(client, start, count)):
        loop.command(more)
    loop.close()


@cache
def replies_for(client: Client, start: Timestamp, count: int) -> int:
    """How many replies all events take: the raw loop itself does not count events."""
    with watch(client.bench.orders, start_at_operation_time=start, batch_size=0) as stream:
        sizes = (len(batch.events) for batch in stream.batches())
        return next(number for number, seen in enumerate(accumulate(sizes), 1) if seen >= count)


def drain_batches(client: Client, start: Timestamp, count: int) -> None:
    with watch(client.bench.orders, start_at_operation_time=start) as stream:
        left = count
        for batch in stream.batches():
            left -= len(batch.events)
            if not left:
                break


def drain_decoded(client: Client, start: Timestamp, count: int) -> None:
    with watch(client.bench.orders, start_at_operation_time=start) as stream:
        for _ in range(count):
            next(stream)


def drain_pymongo(client: Client, start: Timestamp, count: int) -> None:
    with client.bench.orders.watch(start_at_operation_time=start) as stream:
        for _ in range(count):
            next(stream)


def drain_async(client: Client, start: Timestamp, count: int) -> None:
    async def drain() -> None:
        async with (
            AsyncMongoClient(*client.address, directConnection=True) as other,  # type: ignore[misc]
            watch(other.bench.orders, start_at_operation_time=start) as stream,
        ):
            for _ in range(count):
                await stream.next()

    asyncio.run(drain())


def drain_async_pymongo(client: Client, start: Timestamp, count: int) -> None:
    async def drain() -> None:
        async with (
            AsyncMongoClient(*client.address, directConnection=True) as other,  # type: ignore[misc]
            await other.bench.orders.watch(start_at_operation_time=start) as stream,
        ):
            for _ in range(count):
                await stream.next()

    asyncio.run(drain())


def fill(client: Client, count: int) -> Timestamp:
    """Insert documents of 300 bytes; returns the time before the first."""
    client.bench.create_collection("orders")
    start: Timestamp = client.admin.command("ping")["operationTime"]
    for first in range(0, count, 5000):
        last = min(first + 5000, count)
        client.bench.orders.insert_many(
            [{"_id": n, "customer": n % 997, "total": n * 1.25, "note": "x" * 230} for n in range(first, last)]
        )
    return Timestamp(start.time, start.inc + 1)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds that passed, and seconds of this process's CPU, which other work on the machine does not change."""
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu


def throughput(client: Client, count: int, rounds: int) -> None:
    start = fill(client, count)
    rivals: dict[str, Callable[[Client, Timestamp, int], None]] = {
        "raw getMore loop": drain_raw,
        "batches()": drain_batches,
        "decoded": drain_decoded,
        "pymongo watch()": drain_pymongo,
        "async decoded": drain_async,
        "pymongo async watch()": drain_async_pymongo,
    }
    drain_raw(client, start, count)  # so that the first rival does not pay for a cold cache
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    burnt: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds):
        names = list(rivals) if number % 2 == 0 else list(reversed(rivals))
        for name in names:
            passed, cpu = measured(lambda work=rivals[name]: work(client, start, count))  # type: ignore[misc]
            taken[name].append(passed)
            burnt[name].append(cpu)
    print(f"\ndraining {count:,} events, {rounds} rounds in turn")
    for name, times in taken.items():
        rates = f"{count / median(times):>10,.0f} events/s (best {count / min(times):>9,.0f})"
        print(f"  {name:<24}{rates}, client CPU {1e6 * min(burnt[name]) / count:.1f} us/event")
    for ours, theirs, goal in (
        ("batches()", "raw getMore loop", 0.95),
        ("decoded", "pymongo watch()", 1.3),
        ("async decoded", "pymongo async watch()", 1.3),
    ):
        ratio = median(b / a for a, b in zip(taken[ours], taken[theirs], strict=True))
        print(f"  {ours} / {theirs}: {ratio:.2f} (goal: at least {goal})")


@contextmanager
def arrivals(stream: Any) -> Iterator[dict[int, float]]:
    """When each event arrived, seen by a thread that waits in `next`."""
    seen: dict[int, float] = {}

    def look() -> None:
        for event in stream:
            seen[event["fullDocument"]["n"]] = time.perf_counter()

    thread = threading.Thread(target=look)
    thread.start()
    yield seen
    # The last event is a signal to stop: closing under a waiting thread is not what is measured here.
    thread.join(10)


def latencies(client: Client, open_stream: Callable[[], Any], count: int) -> list[float]:
    sent: dict[int, float] = {}
    stream = open_stream()
    with stream, arrivals(_up_to(stream, count)) as seen:
        for n in range(count):
            sent[n] = time.perf_counter()
            client.bench.latency.insert_one({"n": n})
            time.sleep(0.004)
    return [1000 * (seen[n] - sent[n]) for n in range(count)]


def _up_to(stream: Any, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        yield next(stream)


def latency(client: Client, inserts: int, rounds: int) -> None:
    client.bench.create_collection("latency")
    rivals: dict[str, Callable[[], Any]] = {
        "ours": lambda: watch(client.bench.latency),
        "pymongo": client.bench.latency.watch,
    }
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(2 * rounds):
        for name in list(rivals) if number % 2 == 0 else list(reversed(rivals)):
            taken[name] += latencies(client, rivals[name], inserts // (2 * rounds))
    print(f"\nlatency of single inserts, {inserts} each, in turn")
    cuts = {name: quantiles(times, n=100) for name, times in taken.items()}
    for name, cut in cuts.items():
        print(f"  {name:<24}p50 {cut[49]:.2f} ms, p99 {cut[98]:.2f} ms")
    for label, index in (("p50", 49), ("p99", 98)):
        print(f"  {label} ours / pymongo: {cuts['ours'][index] / cuts['pymongo'][index]:.2f} (goal: no worse, 1.0)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inserts", type=int, default=600)
    arguments = parser.parse_args()
    with ReplicaSet.start() as replica_set, replica_set.client() as client:
        throughput(client, arguments.events, arguments.rounds)
        latency(client, arguments.inserts, arguments.rounds)


if __name__ == "__main__":
    main()
