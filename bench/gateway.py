"""N watchers of one collection on a gateway beside the same N on the server, with a writer at full speed.

    python bench/gateway.py [--watchers 1 10 50 200] [--seconds 5]

For each N and side: inserts per second, CPU time of the server per insert, and events delivered per second. The sides
take turns in one run, so that only the ratios mean something. One process plays all watchers, with bare sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import bson

from tailrace.stand import ReplicaSet

_TICKS = os.sysconf("SC_CLK_TCK")


class Result(NamedTuple):
    """What one side did with N watchers."""

    inserts: float
    server_ms_per_insert: float
    delivered: float


async def watch(port: int, count: int) -> None:
    """Play watchers until told to stop, then print how many events came."""
    delivered = 0

    async def one() -> None:
        nonlocal delivered
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)

        async def command(document: dict[str, Any]) -> bytes:
            body = bson.encode(document | {"$db": "bench"})
            writer.write(struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body)
            (size,) = struct.unpack("<i", await reader.readexactly(4))
            return (await reader.readexactly(size - 4))[17:]

        stage = [{"$changeStream": {}}]
        opened = bson.decode(await command({"aggregate": "orders", "pipeline": stage, "cursor": {}}))
        more = {"getMore": opened["cursor"]["id"], "collection": "orders", "maxTimeMS": 500}
        print("open", flush=True)
        while True:
            came = (await command(more)).count(b"\x03documentKey\x00")
            delivered += came

    watchers = [asyncio.create_task(one()) for _ in range(count)]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for each in watchers:
        each.cancel()
    print(delivered, flush=True)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(upstream: ReplicaSet, pid: int, port: int, watchers: int, seconds: float) -> Result:
    command = [sys.executable, __file__, "--watch", str(port), str(watchers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    for _ in range(watchers):
        process.stdout.readline()
    with upstream.client() as client:
        orders = client.bench.orders
        before, began, inserts = cpu_seconds(pid), time.monotonic(), 0
        while (took := time.monotonic() - began) < seconds:
            orders.insert_many([{"customer": inserts, "padding": "x" * 100} for _ in range(10)])
            inserts += 10
        used = cpu_seconds(pid) - before
    process.terminate()
    delivered = int(process.communicate(timeout=30)[0].split()[-1])
    return Result(inserts / took, 1000 * used / inserts, delivered / took)


def pid_of_port(port: int) -> int:
    """The `mongod` that listens at a port, by its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\x00")
            except OSError:
                continue
            if words[0].endswith(b"mongod") and str(port).encode() in words:
                return int(entry.name)
    raise SystemExit(f"no mongod at port {port}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 10, 50, 200])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--watch", type=int, nargs=2, metavar=("PORT", "COUNT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        asyncio.run(watch(*given.watch))
        return
    with ReplicaSet.start("6.0.5") as upstream:
        with upstream.client() as client:
            client.bench.create_collection("orders")
        serve = [sys.executable, "-m", "tailrace.cli.app", "serve", "--uri", upstream.uri, "--port", "0"]
        gateway = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        assert gateway.stdout
        gateway_port = int(gateway.stdout.readline().rpartition(":")[2].strip().strip("/"))
        port = upstream.primary.port
        try:
            for count in given.watchers:
                sides = [measure(upstream, pid_of_port(port), at, count, given.seconds) for at in (port, gateway_port)]
                for name, side in zip(("server", "gateway"), sides, strict=True):
                    print(
                        f"{count:4} watchers on the {name:7}: {side.inserts:8,.0f} inserts/s, server CPU "
                        f"{side.server_ms_per_insert:.3f} ms/insert, {side.delivered:10,.0f} events/s delivered"
                    )
                print(f"{count:4} watchers: the writer is {sides[1].inserts / sides[0].inserts:.2f} x as fast")
        finally:
            gateway.terminate()
            gateway.wait(30)


if __name__ == "__main__":
    main()
