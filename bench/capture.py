"""Capture into a real Kafka broker, beside a raw getMore drain and the naive loop, on the same events in one run.

    python bench/capture.py [--events 300000] [--rounds 2] [--only json,bson]

Ratios are printed with the goal beside each. Every rival runs in a process of its own and reads the same loaded events
(60 % inserts of 300-byte documents, 30 % updates, 10 % deletes) from the time before the load; "steady" is the
last two thirds of them. The machine's other work falls on all alike, because they take turns; only ratios count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bson import ObjectId, Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from confluent_kafka import Consumer, Producer
from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne

from tailrace.stand import Kafka, ReplicaSet

RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)
Client = MongoClient[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to capture, and what it is held against."""

    name: str
    format: str
    source: str = "change-stream"
    delivery: str = "at-least-once"


CASES = {
    case.name: case
    for case in (
        Case("json", "json"),
        Case("bson", "bson"),
        Case("json, exactly-once", "json", delivery="exactly-once"),
        Case("json, oplog", "json", source="oplog"),
        Case("bson, oplog", "bson", source="oplog"),
    )
}


# --- the load


def document(rng: random.Random) -> dict[str, Any]:
    return {"_id": ObjectId(), "user_id": rng.randrange(10_000), "amount": rng.random() * 100, "status": "placed",
            "note": "x" * 200}  # fmt: skip


def load(client: Client, events: int, seed: int = 1) -> Timestamp:
    """Write the workload in bulk; gives the operation time before it."""
    rng = random.Random(seed)
    orders = client.bench.orders
    start: Timestamp = client.admin.command("ping")["operationTime"]
    alive: list[ObjectId] = []
    written = 0
    while written < events:
        requests: list[Any] = []
        for _ in range(min(1_000, events - written)):
            chance = rng.random()
            if chance < 0.6 or len(alive) < 100:
                fresh = document(rng)
                alive.append(fresh["_id"])
                requests.append(InsertOne(fresh))
            elif chance < 0.9:
                key = rng.choice(alive)
                requests.append(UpdateOne({"_id": key}, {"$set": {"status": "paid", "amount": rng.random()}}))
            else:
                place = rng.randrange(len(alive))
                alive[place], alive[-1] = alive[-1], alive[place]
                requests.append(DeleteOne({"_id": alive.pop()}))
        orders.bulk_write(requests, ordered=True)
        written += len(requests)
    return start


# --- the rivals; each prints one JSON line from its own process


def drain_raw(uri: str, start: Timestamp, events: int) -> dict[str, Any]:
    """A getMore loop that looks at nothing: what the server alone allows."""
    with MongoClient[dict[str, Any]](uri) as client:
        stage = {"$changeStream": {"startAtOperationTime": start, "allChangesForCluster": True}}
        command = {"aggregate": 1, "pipeline": [stage], "cursor": {"batchSize": 0}}
        cursor = client.admin.command(command, codec_options=RAW)["cursor"]["id"]
        clock = Clock(events)
        while not clock.done:
            reply = client.admin.command("getMore", cursor, collection="$cmd.aggregate", codec_options=RAW)
            clock.add(len(reply["cursor"]["nextBatch"]))
    return clock.result()


def naive(uri: str, servers: str, topic: str, start: Timestamp, events: int, folder: str) -> dict[str, Any]:
    """What a first version looks like: one synchronous send and one token file per event."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    clock = Clock(events)
    with MongoClient[dict[str, Any]](uri) as client:
        for event in client.watch(start_at_operation_time=start):
            producer.produce(topic, json.dumps(event, default=str), json.dumps(event.get("documentKey"), default=str))
            producer.flush()
            new = Path(folder, "token.new")
            new.write_text(json.dumps(event["_id"]))
            new.replace(Path(folder, "token"))
            clock.add(1)
            if clock.done:
                break
    return clock.result()


def capture(
    case: Case, uri: str, servers: str, prefix: str, start: Timestamp, events: int, folder: str
) -> dict[str, Any]:
    """The producer, from a stored position to the end of the load."""
    from tailrace.capture.assembly import Capture
    from tailrace.capture.positions import Position

    client: Client = MongoClient(uri)
    with client, Capture.open(settings_of(case, uri, servers, prefix, folder), client) as opened:
        opened.begin_at(Position(None, start), reason="bench")
        clock = Clock(events)

        def count(point: str) -> None:
            if point == "acknowledged":
                clock.reach(producer.delivered)
                if clock.done:
                    producer.stop()

        producer = opened.producer(hook=count)
        producer.run()
    return clock.result()


def settings_of(case: Case, uri: str, servers: str, prefix: str, folder: str) -> Any:
    from tailrace.settings import Settings

    exactly_once = case.delivery == "exactly-once"
    return Settings.load(
        flags={
            "mongodb.uri": uri,
            "capture.name": prefix,
            "capture.source": case.source,
            "capture.format": case.format,
            "capture.delivery": case.delivery,
            "capture.sink": f"kafka://{servers}",
            "capture.topic_prefix": prefix,
            "capture.partitions": 3,
            "capture.namespaces": ("bench.orders",),
            "capture.position_store": f"kafka://{servers}/{prefix}-positions" if exactly_once else f"file:{folder}",
        }
    )


class Clock:
    """Times the last two thirds of the events."""

    def __init__(self, events: int) -> None:
        self._warm = events // 3
        self._events = events
        self._seen = 0
        self._from: tuple[float, float, int] | None = None
        self._to = (0.0, 0.0)

    def add(self, count: int) -> None:
        self._seen += count
        now = time.monotonic(), time.process_time()
        if self._from is None and self._seen >= self._warm:
            self._from = (*now, self._seen)
        if self.done:
            self._to = now

    def reach(self, seen: int) -> None:
        self.add(seen - self._seen)

    @property
    def done(self) -> bool:
        return self._seen >= self._events

    def result(self) -> dict[str, Any]:
        assert self._from is not None
        began, cpu, seen = self._from
        measured = self._seen - seen
        return {
            "rate": measured / (self._to[0] - began),
            "cpu_us": (self._to[1] - cpu) / measured * 1e6,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


# --- measuring


def in_process(job: str, *arguments: Any) -> dict[str, Any]:
    """Run one rival in a process of its own."""
    command = [sys.executable, __file__, "--job", json.dumps([job, *arguments])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if result.returncode:
        raise SystemExit(f"{job} failed:\n{result.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def run_job(job: str, *arguments: Any) -> dict[str, Any]:
    if job == "raw":
        uri, start, events = arguments
        return drain_raw(uri, Timestamp(*start), events)
    if job == "naive":
        uri, servers, topic, start, events, folder = arguments
        return naive(uri, servers, topic, Timestamp(*start), events, folder)
    name, uri, servers, prefix, start, events, folder = arguments
    return capture(CASES[name], uri, servers, prefix, Timestamp(*start), events, folder)


def throughput(replica_set: ReplicaSet, kafka: Kafka, events: int, rounds: int, names: list[str]) -> None:
    with replica_set.client() as client:
        start = load(client, events)
    begin = [start.time, start.inc]
    rates: dict[str, list[float]] = {name: [] for name in ["raw", "naive", *names]}
    for number in range(rounds):
        rates["raw"].append(show("raw", in_process("raw", replica_set.uri, begin, events)))
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                prefix = f"b{number}-{names.index(name)}-{os.getpid()}"
                arguments = (name, replica_set.uri, kafka.bootstrap_servers, prefix, begin, events, folder)
                rates[name].append(show(name, in_process("capture", *arguments)))
        with tempfile.TemporaryDirectory() as folder:
            few = min(events, 6_000)
            found = in_process("naive", replica_set.uri, kafka.bootstrap_servers, f"naive-{number}", begin, few, folder)
            rates["naive"].append(show("naive", found))
    compare({name: median(each) for name, each in rates.items()})


def show(name: str, found: dict[str, Any]) -> float:
    print(
        f"  {name:20} {found['rate']:>9,.0f} events/s  {found['cpu_us']:6.1f} us CPU  {found['peak_mb']:5.0f} MB",
        flush=True,
    )
    return float(found["rate"])


def compare(rates: dict[str, float]) -> None:
    """Print the ratios with their goals."""
    goals = [
        ("json", "raw", 0.60), ("bson", "raw", 0.75), ("json, exactly-once", "json", 0.80),
        ("json, oplog", "json", 1.00), ("bson, oplog", "bson", 1.00), ("json", "naive", 20.0),
    ]  # fmt: skip
    for name, rival, goal in goals:
        if name in rates and rival in rates:
            ratio = rates[name] / rates[rival]
            verdict = "met" if ratio >= goal else "missed"
            print(f"{name} / {rival}: {ratio:.2f} (goal {goal:.2f}: {verdict})")


# --- latency


def latency(replica_set: ReplicaSet, kafka: Kafka, seconds: float, per_second: float) -> None:
    """From the start of an insert to its record at a consumer, at a steady rate of inserts."""
    servers = kafka.bootstrap_servers
    for name, rival in (("json", False), ("json, exactly-once", False), ("json, oplog", False), ("naive", True)):
        prefix = f"latency-{name.replace(', ', '-')}-{os.getpid()}"
        topic = prefix if rival else f"{prefix}.bench.orders"
        with tempfile.TemporaryDirectory() as folder, replica_set.client() as client:
            start = client.admin.command("ping")["operationTime"]
            arguments: list[Any] = [replica_set.uri, servers, prefix, [start.time, start.inc], 10**9, folder]
            job = ["naive", *arguments] if rival else ["capture", name, *arguments]
            process = subprocess.Popen([sys.executable, __file__, "--job", json.dumps(job)], stdout=subprocess.DEVNULL)
            try:
                found = measure_latency(client, servers, topic, seconds, per_second)
            finally:
                process.kill()
                process.wait()
        if len(found) < 100:
            print(f"  latency {name:20} does not keep up with {per_second:g} writes/s", flush=True)
            continue
        p50, p99 = median(found), quantiles(found, n=100)[98]
        goal = "" if rival else "  (goal 15 and 60)"
        print(f"  latency {name:20} p50 {p50 * 1e3:6.1f} ms  p99 {p99 * 1e3:6.1f} ms{goal}", flush=True)


def measure_latency(client: Client, servers: str, topic: str, seconds: float, per_second: float) -> list[float]:
    """Insert documents that say when, and read them back from the topic; the first seconds are warm-up."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5,
         "isolation.level": "read_committed", "allow.auto.create.topics": True,
         "topic.metadata.refresh.interval.ms": 500}
    )  # fmt: skip
    consumer.subscribe([topic])
    seen: list[tuple[float, float]] = []
    stop = threading.Event()

    def insert() -> None:
        due = time.time()
        while not stop.is_set():
            client.bench.orders.insert_one({"at": time.time(), "note": "x" * 200})
            due += 1 / per_second
            time.sleep(max(0.0, due - time.time()))

    thread = threading.Thread(target=insert, daemon=True)
    thread.start()
    first = None
    deadline = time.time() + 60 + seconds
    while time.time() < deadline and (first is None or time.time() < first + seconds + 3):
        message = consumer.poll(0.1)
        if message is None or message.error():
            continue
        now = time.time()
        first = first or now
        at = json.loads(message.value())["fullDocument"]["at"]
        if isinstance(at, float) and now > first + 3:
            seen.append((at, now))
    stop.set()
    thread.join()
    consumer.close()
    return [now - at for at, now in seen if at > (first or 0) + 2]


# --- memory


def memory(replica_set: ReplicaSet, kafka: Kafka, events: int) -> None:
    """The peak of a producer that may not deliver, with many events waiting for it."""
    with replica_set.client() as client, tempfile.TemporaryDirectory() as folder:
        client.bench.orders.drop()
        start = load(client, events, seed=2)
        arguments = ["json", replica_set.uri, kafka.bootstrap_servers, f"memory-{os.getpid()}"]
        job = ["capture", *arguments, [start.time, start.inc], events, folder]
        process = subprocess.Popen([sys.executable, __file__, "--job", json.dumps(job)], stdout=subprocess.DEVNULL)
        time.sleep(4)
        kafka.pause()
        time.sleep(20)
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.kill()
        process.wait()
        kafka.resume()
    peak = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
    print(f"  peak RSS with the broker stopped and {events:,} events waiting: {peak:.0f} MB (goal 400)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="|".join(CASES), help="cases, separated by |")
    parser.add_argument("--skip", default="", help="parts to leave out: throughput, latency, memory")
    parser.add_argument("--seconds", type=float, default=10, help="how long each latency is measured")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="events that wait while the broker is stopped")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(run_job(*json.loads(arguments.job))))
        return
    with ReplicaSet.start(oplog_mb=2_000) as replica_set, Kafka.start() as kafka:
        if "throughput" not in arguments.skip:
            throughput(replica_set, kafka, arguments.events, arguments.rounds, arguments.only.split("|"))
        if "latency" not in arguments.skip:
            latency(replica_set, kafka, arguments.seconds, 500)
        if "memory" not in arguments.skip:
            memory(replica_set, kafka, arguments.waiting)


if __name__ == "__main__":
    main()
