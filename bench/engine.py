"""The engine beside the server's own change stream, over the same oplog in the same run.

    python bench/engine.py [--events 500000] [--rounds 3] [--version 6.0.5]

Loads a mixed oplog (60 % inserts of 300 bytes, 30 % updates, 10 % deletes), then lets both read it in turns and prints
ratios: events per second, server CPU per event (from /proc), and both again with a `$match` that keeps 0.1 %.
The machine's other work falls on both alike; only the ratios mean something. The engine reads in a process
of its own, whose peak memory is printed for a tenth of the oplog and for all of it.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import Any

from bson import ObjectId, Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne, WriteConcern

from tailrace import raw
from tailrace.engine.live import watch_oplog
from tailrace.oplog.reply import read_batch
from tailrace.oplog.tail import LiveOplog, timestamp
from tailrace.stand import ReplicaSet
from tailrace.token import ResumeToken

RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)
KEEP_ONE_IN_A_THOUSAND = [{"$match": {"fullDocument.bucket": 0}}]
BUCKETS = 600  # of inserts, which are 60 % of the events
BATCH = 1000
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """What it took to read a stream once."""

    events: int
    seconds: float
    server_seconds: float
    client_seconds: float
    peak_mb: float


# --- the load


def load(client: MongoClient[Any], events: int) -> None:
    """Write the mixed workload in bulk."""
    rng = random.Random(1)
    orders = client.bench.get_collection("orders", write_concern=WriteConcern(1))
    alive: list[ObjectId] = []
    written = 0
    while written < events:
        requests: list[Any] = []
        for _ in range(min(BATCH, events - written)):
            kind = rng.random()
            if kind < 0.6 or len(alive) < 10:
                identifier = ObjectId()
                alive.append(identifier)
                requests.append(InsertOne(document(rng, identifier)))
            elif kind < 0.9:
                change = {"$set": {"price": rng.random() * 100, "status": "shipped"}}
                requests.append(UpdateOne({"_id": rng.choice(alive)}, change))
            else:
                requests.append(DeleteOne({"_id": alive.pop(rng.randrange(len(alive)))}))
        orders.bulk_write(requests, ordered=True)
        written += len(requests)
    client.bench.end.with_options(write_concern=WriteConcern("majority")).insert_one({})


def document(rng: random.Random, identifier: ObjectId) -> dict[str, Any]:
    """Make an order of about 300 bytes."""
    return {
        "_id": identifier,
        "bucket": rng.randrange(BUCKETS),
        "customer": f"customer-{rng.randrange(10_000)}",
        "price": rng.random() * 100,
        "status": "new",
        "lines": [{"sku": f"sku-{rng.randrange(1000)}", "count": rng.randrange(1, 5)} for _ in range(2)],
        "note": "x" * 90,
    }


# --- the rivals


def read_server(uri: str, start: int, end: int, pipeline: Sequence[Any]) -> int:
    """Drain the server's change stream: one raw reply after the other, cut into events."""
    stage = {"allChangesForCluster": True, "startAtOperationTime": timestamp(start)}
    command: dict[str, Any] = {
        "aggregate": 1,
        "pipeline": [{"$changeStream": stage}, *pipeline],
        "cursor": {"batchSize": 10_000},
    }
    count = 0
    with MongoClient(uri) as client, client.start_session() as session:
        while True:
            reply = client.admin.command(command, codec_options=RAW, session=session).raw
            batch = read_batch(reply)
            count += len(batch.entries)
            if position(reply) >= end:
                return count
            command = {
                "getMore": batch.cursor_id,
                "collection": "$cmd.aggregate",
                "batchSize": 10_000,
                "maxTimeMS": 100,
            }


def position(reply: bytes) -> int:
    span = raw.find_path(reply, b"cursor", b"postBatchResumeToken")
    assert span is not None
    time = ResumeToken.parse(reply[span[1] : span[2]]).cluster_time
    return time.time << 32 | time.inc


def read_engine(uri: str, start: int, end: int, pipeline: Sequence[Any]) -> int:
    """Drain the same stream, made by the engine from the oplog."""
    count = 0
    begin: Timestamp = timestamp(start)
    with (
        MongoClient(uri) as client,
        watch_oplog(client, pipeline, start_at_operation_time=begin, max_await_time_ms=100) as stream,
    ):
        while True:
            batch = stream.next_batch()
            count += len(batch.found)
            reached = batch.operation_time
            if reached.time << 32 | reached.inc >= end:
                return count


# --- measuring


def server_seconds(pid: int) -> float:
    """CPU that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(read: Callable[..., int], pid: int, *arguments: Any) -> Reading:
    """Read a stream in a fresh process."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_measured, args=(sender, read, pid, arguments))
    child.start()
    sender.close()
    reading: Reading = receiver.recv()
    child.join()
    return reading


def _measured(sender: Any, read: Callable[..., int], pid: int, arguments: Any) -> None:
    cpu, began, own = server_seconds(pid), time.perf_counter(), time.process_time()
    count = read(*arguments)
    seconds, own = time.perf_counter() - began, time.process_time() - own
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    sender.send(Reading(count, seconds, server_seconds(pid) - cpu, own, peak))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--version", default="6.0.5")
    options = parser.parse_args()
    with ReplicaSet.start(options.version, oplog_mb=2000) as replica_set, replica_set.client() as client:
        oplog = LiveOplog(client)
        start = oplog.newest() + 1
        load(client, options.events // 10)
        tenth = oplog.newest()
        load(client, options.events - options.events // 10)
        end = oplog.newest()
        pid = replica_set.primary.pid
        print(f"{options.events} events on MongoDB {options.version}, {options.rounds} rounds, medians\n")
        log = (pid, replica_set.uri, start, end)
        compare("all events", options.rounds, options.events, *log, [])
        compare("$match keeps 0.1 %", options.rounds, options.events, *log, KEEP_ONE_IN_A_THOUSAND)
        small = measure(read_engine, pid, replica_set.uri, start, tenth, [])
        whole = measure(read_engine, pid, replica_set.uri, start, end, [])
        print(
            f"peak memory of the engine's process: {small.peak_mb:.0f} MB for a tenth, {whole.peak_mb:.0f} MB for all"
        )


def compare(title: str, rounds: int, scanned: int, pid: int, *arguments: Any) -> None:
    """Let both read in turns, and print the ratios of the medians."""
    readings: dict[str, list[Reading]] = {"server": [], "engine": []}
    for _ in range(rounds):
        readings["server"].append(measure(read_server, pid, *arguments))
        readings["engine"].append(measure(read_engine, pid, *arguments))
    counts = {reading.events for rival in readings.values() for reading in rival}
    assert len(counts) == 1, f"the rivals disagree about the number of events: {counts}"
    print(f"{title} ({counts.pop()} shown)")
    per_event: dict[str, tuple[float, float]] = {}
    for name, rival in readings.items():
        rate = median(scanned / reading.seconds for reading in rival)
        cpu = median(reading.server_seconds / scanned * 1e6 for reading in rival)
        own = median(reading.client_seconds / scanned * 1e6 for reading in rival)
        per_event[name] = rate, cpu
        print(f"  {name:<7} {rate:>9,.0f} events/s   {cpu:6.2f} us server CPU/event   {own:6.2f} us client CPU/event")
    faster = per_event["engine"][0] / per_event["server"][0]
    lighter = per_event["server"][1] / per_event["engine"][1]
    print(f"  engine: {faster:.2f} x the events/s, 1/{lighter:.1f} of the server CPU\n")


if __name__ == "__main__":
    main()
