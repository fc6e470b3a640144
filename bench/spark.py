"""The Spark side beside its rival, and the way of an insert into Redis, millisecond by millisecond.

    python bench/spark.py [--events 200000] [--seconds 20] [--rate 500] [--rival]

`--rival` measures the MongoDB Spark Connector on the same events in the same run. It has no release for Spark 4, so it
gets an environment of its own with pyspark 3.5.7 (fetched once, 320 MB). Both read the same history into Spark's noop
sink. The other work of the machine falls on both alike: only ratios and percentiles mean something.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import venv
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import redis
from bson.timestamp import Timestamp
from pymongo import MongoClient

from spark_rival import busy_seconds
from tailrace.cli.spark_session import spark_session
from tailrace.features.definition import Definition, parse_definition
from tailrace.settings import SparkSettings
from tailrace.spark.features import FeatureJob
from tailrace.stand import Redis, ReplicaSet
from tailrace.stand.cache import cache_folder
from tailrace.stand.java import java_home

ROUNDS = 3
CONNECTOR = "org.mongodb.spark:mongo-spark-connector_2.12:10.5.0"
COLUMNS = (
    "token string, op string, cluster_time timestamp, db string, coll string, document_key string, full_document string"
)
"""What the rival is asked for too."""
RIVAL = Path(__file__).with_name("spark_rival.py")


def definition() -> Definition:
    return parse_definition(
        {
            "name": "bench",
            "namespace": "bench.tx",
            "entity": "user_id",
            "time": "placed_at",
            "lateness": "1h",
            "feature": [
                {"name": "n_1m", "kind": "count", "window": "1m"},
                {"name": "n_1h", "kind": "count", "window": "1h"},
                {"name": "amount_1h", "kind": "sum", "of": "amount", "window": "1h"},
                {"name": "velocity", "kind": "velocity", "window": "1h"},
                {"name": "merchants", "kind": "distinct", "of": "merchant", "window": "today"},
            ],
        }
    )


def transaction(number: int) -> dict[str, Any]:
    at = datetime.now(UTC)
    fields = {"user_id": number % 1000, "amount": 9.5, "merchant": f"m{number % 50}", "placed_at": at}
    return {**fields, "number": number, "filler": "x" * 150}


def now(client: MongoClient[Any]) -> Timestamp:
    time_: Timestamp = client.admin.command("ping")["operationTime"]
    return Timestamp(time_.time, time_.inc + 1)


# --- throughput of the source


def tailrace_rates(spark: Any, uri: str, start: Timestamp, count: int, source: str) -> list[float]:
    options = {
        "uri": uri,
        "namespaces": "bench.tx",
        "source": source,
        "startAtOperationTime": f"{start.time}:{start.inc}",
    }

    limits = {"maxEventsPerBatch": "50000", "maxBytesPerBatch": "64000000", "carryBytes": "64000000"}
    reader = spark.readStream.format("tailrace").options(**options, **limits).schema(COLUMNS).load()

    def stream() -> float:
        with tempfile.TemporaryDirectory() as folder:
            query = reader.writeStream.format("noop").option("checkpointLocation", folder).start()
            while sum(progress["numInputRows"] for progress in query.recentProgress) < count:
                if query.exception():
                    raise query.exception()
                time.sleep(0.05)
            query.stop()
            return busy_seconds(query.recentProgress)

    return [stream() for _ in range(ROUNDS)]


def rival_rates(uri: str, start: Timestamp, count: int) -> list[float]:
    folder = cache_folder() / "bench-pyspark-3.5.7"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "pyspark==3.5.7", "setuptools"], check=True)
    with tempfile.TemporaryDirectory() as work:
        run = subprocess.run(
            [str(python), str(RIVAL), CONNECTOR, uri, str(start.time), str(count), str(ROUNDS), work],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
            env={"JAVA_HOME": str(java_home()), "PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": str(python), "HOME": work},
        )
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"the rival did not finish: {run.stderr[-2000:]}")
    rates: list[float] = json.loads(lines[0].removeprefix("RESULT "))
    return rates


# --- features


class Probe(threading.Thread):
    """Looks into Redis as fast as it can, and notes when each probe user's count grew."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._redis = redis.Redis.from_url(url)
        self.inserted: dict[int, float] = {}
        self.latencies: list[float] = []
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            waiting = list(self.inserted)
            if waiting:
                with self._redis.pipeline(transaction=False) as trip:
                    for number in waiting:
                        trip.exists(f"bench:probe{number}:features")
                    for number, is_there in zip(waiting, trip.execute(), strict=True):
                        if is_there:
                            self.latencies.append(time.monotonic() - self.inserted.pop(number))
            time.sleep(0.002)


def latency(spark: Any, replica_set: ReplicaSet, server: Redis, seconds: float, rate: float) -> None:
    job = FeatureJob(definition(), server.url, in_driver=True)
    probe = Probe(server.url)
    probe.start()
    with tempfile.TemporaryDirectory() as folder, replica_set.client() as client:
        query = job.start(job.events(spark, replica_set.uri), folder)
        while not query.lastProgress:
            time.sleep(0.1)
        began, number, probes = time.monotonic(), 0, 0
        while time.monotonic() - began < seconds + 5:
            due = int((time.monotonic() - began) * rate) - number
            if due > 0:
                client.bench.tx.insert_many([transaction(number + n) for n in range(due)])
                number += due
                probe.inserted[probes] = time.monotonic()
                client.bench.tx.insert_one({**transaction(0), "user_id": f"probe{probes}"})
                probes += 1
            time.sleep(0.02)
        time.sleep(3)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        query.stop()
    probe.enough.set()
    found = sorted(probe.latencies[len(probe.latencies) // 5 :])  # the first seconds warm the JVM up
    cuts = quantiles(found, n=100)
    print(f"insert -> Redis at {rate:.0f}/s, {len(found)} probes:")
    print(f"  p50 {cuts[49] * 1e3:.0f} ms, p99 {cuts[98] * 1e3:.0f} ms")
    for phase in ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution"):
        print(f"  {phase:18} {median(one['durationMs'].get(phase, 0) for one in progress):6.0f} ms of a batch")


def throughput(spark: Any, replica_set: ReplicaSet, server: Redis, start: Timestamp, count: int) -> None:
    job = FeatureJob(definition(), server.url, in_driver=True)
    options = {"startAtOperationTime": f"{start.time}:{start.inc}", "maxEventsPerBatch": "10000"}
    with tempfile.TemporaryDirectory() as folder:
        query = job.start(job.events(spark, replica_set.uri, options), folder)
        began = time.monotonic()
        while sum(progress["numInputRows"] for progress in query.recentProgress) < count:
            if query.exception():
                raise query.exception()
            time.sleep(0.05)
        took = time.monotonic() - began
        batches = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
        query.stop()
    print(f"features: {count / took:,.0f} events/s over {count:,} events, 1,000 entities")
    print(f"  first batches {batches[:3]} ms, last batches {batches[-3:]} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--rival", action="store_true")
    chosen = parser.parse_args()
    settings = SparkSettings(master="local[2]", log_level="error")
    with ReplicaSet.start() as replica_set, Redis.start() as server, replica_set.client() as client:
        start = now(client)
        for begin in range(0, chosen.events, 10_000):
            client.bench.tx.insert_many([transaction(begin + n) for n in range(min(10_000, chosen.events - begin))])
        best = {}
        with spark_session(settings) as spark:
            for source in ("change-stream", "oplog"):
                best[source] = min(tailrace_rates(spark, replica_set.uri, start, chosen.events, source))
                print(f"format(tailrace), {source}: {chosen.events / best[source]:,.0f} events/s")
            throughput(spark, replica_set, server, start, min(chosen.events, 100_000))
            with redis.Redis.from_url(server.url) as cleaning:
                cleaning.flushall()
            latency(spark, replica_set, server, chosen.seconds, chosen.rate)
        if chosen.rival:
            theirs = min(rival_rates(replica_set.uri, start, chosen.events))
            print(f"MongoDB Spark Connector 10.5.0: {chosen.events / theirs:,.0f} events/s")
            for source, ours in best.items():
                print(f"  ratio of {source}: {theirs / ours:.1f}")


if __name__ == "__main__":
    main()
