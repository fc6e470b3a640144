"""What a gateway adds and costs, beside the server's own streams in the same run.

    python bench/gateway_latency.py latency [--seconds 10]
    python bench/gateway_latency.py idle-shard [--seconds 10]
    python bench/gateway_latency.py server-cpu [--watchers 1 200] [--rate 500] [--seconds 10]
    python bench/gateway_latency.py connections [--count 10000]

`latency`: the same inserts seen through the gateway and directly, one beside the other; the difference counts.
`idle-shard`: insert -> seen over three shards of which one is idle, beside the same with none idle.
`server-cpu`: CPU time of the server at one pace of writing, with few and with many watchers on the gateway.
`connections`: memory of the gateway for each client that is connected and says nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import bson
from bson import MaxKey
from pymongo import MongoClient

from tailrace.stand import ReplicaSet, ShardedCluster

_TICKS = os.sysconf("SC_CLK_TCK")
_NAMESPACE = "bench.orders"


@contextmanager
def gateway(uri: str, *options: str) -> Iterator[tuple[int, int]]:
    """A gateway as a process of its own; its port and process id."""
    command = [sys.executable, "-m", "tailrace.cli.app", "serve", "--uri", uri, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield int(process.stdout.readline().rpartition(":")[2].strip().strip("/")), process.pid
    finally:
        process.terminate()
        process.wait(30)


class Watcher:
    """Notes when each document's event is seen."""

    def __init__(self, uri: str) -> None:
        self.seen: dict[Any, float] = {}
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._stream = self._client.bench.orders.watch(max_await_time_ms=500)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            event = self._stream.try_next()
            if event is not None and event["operationType"] == "insert":
                self.seen[event["documentKey"]["_id"]] = time.perf_counter()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        self._stream.close()
        self._client.close()


def shown(times: list[float]) -> str:
    return f"p50 {1000 * median(times):6.1f} ms, p99 {1000 * quantiles(times, n=100)[-1]:6.1f} ms ({len(times)} events)"


def latency(seconds: float) -> None:
    with ExitStack() as stack:
        upstream = stack.enter_context(ReplicaSet.start("6.0.5"))
        client = stack.enter_context(upstream.client())
        client.bench.create_collection("orders")
        port, _ = stack.enter_context(gateway(upstream.uri))
        direct, through = Watcher(upstream.uri), Watcher(f"mongodb://127.0.0.1:{port}/")
        sent, end = {}, time.monotonic() + seconds
        while time.monotonic() < end:
            key = len(sent)
            sent[key] = time.perf_counter()
            client.bench.orders.insert_one({"_id": key})
            time.sleep(0.01)
        time.sleep(1)
        for watcher in (direct, through):
            watcher.close()
    both = [key for key in sent if key in direct.seen and key in through.seen]
    for name, watcher in (("server", direct), ("gateway", through)):
        print(f"insert -> seen on the {name:7}: {shown([watcher.seen[key] - sent[key] for key in both])}")
    print(f"added by the gateway: p50 {1000 * median(through.seen[key] - direct.seen[key] for key in both):.1f} ms")


def idle_shard(seconds: float) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(ShardedCluster.start(shards=3, parameters={"writePeriodicNoops": False}))
        cluster.create_database("bench")
        cluster.shard_collection(_NAMESPACE, {"user": 1})
        cluster.move_range(_NAMESPACE, "s1", min={"user": 1}, max={"user": MaxKey()})
        port, _ = stack.enter_context(gateway(cluster.config.uri, "--watch-only"))
        for is_idle in (True, False, True, False):
            acknowledged, seen = _over_shards(cluster, f"mongodb://127.0.0.1:{port}/", seconds / 4, is_idle)
            third = f"third shard {'idle' if is_idle else 'busy'}"
            print(f"insert -> acknowledged, {third}: {shown(acknowledged)}")
            print(f"insert -> seen,         {third}: {shown(seen)}")


def _over_shards(
    cluster: ShardedCluster, uri: str, seconds: float, third_is_idle: bool
) -> tuple[list[float], list[float]]:
    watcher, stop = Watcher(uri), threading.Event()

    def keep_busy() -> None:
        while not stop.wait(0.002):
            cluster.shard_client("s2").other.busy.insert_one({})

    busy = threading.Thread(target=keep_busy, daemon=True)
    if not third_is_idle:
        busy.start()
    sent: dict[str, float] = {}
    acknowledged: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = f"{end} {len(sent)}"
        sent[key] = time.perf_counter()
        cluster.insert(_NAMESPACE, {"_id": key, "user": len(sent) % 2})
        acknowledged.append(time.perf_counter() - sent[key])
        time.sleep(0.01)
    time.sleep(1)
    stop.set()
    watcher.close()
    assert len(watcher.seen) >= len(sent), f"{len(watcher.seen)} of {len(sent)} seen"
    return acknowledged, [watcher.seen[key] - began for key, began in sent.items()]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def server_cpu(watchers: list[int], rate: int, seconds: float) -> None:
    with ReplicaSet.start("6.0.5") as upstream, upstream.client() as client:
        client.bench.create_collection("orders")
        server = upstream.primary.pid
        with gateway(upstream.uri) as (port, pid):
            used: dict[int, list[float]] = {count: [] for count in watchers}
            for count in watchers * 3:
                with playing(port, count, "watch"):
                    before, own = cpu_seconds(server), cpu_seconds(pid)
                    inserts = _insert_at(client, rate, seconds / 3)
                    used[count].append((cpu_seconds(server) - before) / inserts)
                    spent = (cpu_seconds(pid) - own) / inserts
                print(
                    f"{count:4} watchers: server CPU {1000 * used[count][-1]:.3f} ms/insert, "
                    f"gateway CPU {1000 * spent:.3f} ms/insert, {1000 * spent / count:.4f} ms/event delivered"
                )
    few, many = (median(used[count]) for count in (watchers[0], watchers[-1]))
    print(f"server CPU from {watchers[0]} to {watchers[-1]} watchers: {100 * (many / few - 1):+.0f} %")


def _insert_at(client: MongoClient[dict[str, Any]], rate: int, seconds: float) -> int:
    began, inserts = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        if inserts < took * rate:
            client.bench.orders.insert_many([{"customer": inserts, "padding": "x" * 100} for _ in range(10)])
            inserts += 10
        else:
            time.sleep(0.001)
    return inserts


def connections(count: int) -> None:
    with ReplicaSet.start("6.0.5") as upstream, gateway(upstream.uri) as (port, pid):
        before = resident(pid)
        with playing(port, count, "idle"):
            with MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{port}/") as client:
                began = time.perf_counter()
                client.admin.command("ping")
                answered = time.perf_counter() - began
            each = (resident(pid) - before) / count
            print(f"{count} idle connections: {each / 1024:.1f} kB each; a new client is served in {answered:.3f} s")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def playing(port: int, count: int, what: str) -> Iterator[None]:
    """A process that plays so many clients."""
    command = [sys.executable, __file__, "play", "--port", str(port), "--count", str(count), "--what", what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        for _ in range(count):
            process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.wait(30)


async def play(port: int, count: int, what: str) -> None:
    """Connect so many clients with bare sockets, and let them watch or stay idle until told to stop."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)

        async def command(document: dict[str, Any]) -> bytes:
            body = bson.encode(document | {"$db": "bench"})
            writer.write(struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body)
            (size,) = struct.unpack("<i", await reader.readexactly(4))
            return (await reader.readexactly(size - 4))[17:]

        if what == "idle":
            await command({"hello": 1})
            print("open", flush=True)
            await asyncio.Event().wait()
        stage = [{"$changeStream": {}}]
        opened = bson.decode(await command({"aggregate": "orders", "pipeline": stage, "cursor": {}}))
        print("open", flush=True)
        while True:
            await command({"getMore": opened["cursor"]["id"], "collection": "orders", "maxTimeMS": 500})

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    clients = []
    for number in range(count):
        clients.append(asyncio.create_task(one()))
        if number % 100 == 99:
            await asyncio.sleep(0.01)
    await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what_to_measure", choices=["latency", "idle-shard", "server-cpu", "connections", "play"])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 200])
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--what", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.what_to_measure == "latency":
        latency(given.seconds)
    elif given.what_to_measure == "idle-shard":
        idle_shard(given.seconds)
    elif given.what_to_measure == "server-cpu":
        server_cpu(given.watchers, given.rate, given.seconds)
    elif given.what_to_measure == "connections":
        connections(given.count)
    else:
        asyncio.run(play(given.port, given.count, given.what))


if __name__ == "__main__":
    main()
