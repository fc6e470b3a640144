"""How each peer is set: as it comes, and as its documentation recommends for throughput or latency.

What stands here ends up in the result beside the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from bench.contestant import ContestantFailed, ProcessContestant, Unavailable
from bench.peers import DEBEZIUM, MONGO_KAFKA, MONGO_SPARK, java_program
from tailrace.errors import TailraceError
from tailrace.stand.cache import cache_folder
from tailrace.stand.java import java_home

DEBEZIUM_TUNED = {"max.batch.size": "8192", "max.queue.size": "32768", "capture.scope": "collection",
                  "capture.target": "bench.orders"}  # fmt: skip
DEBEZIUM_PROMPT = {"poll.interval.ms": "10"}
"""The default of 500 ms is what makes its default latency."""
MONGO_TUNED = {"poll.max.batch.size": "10000"}
PRODUCER_TUNED = {
    "producer.override.linger.ms": "20",
    "producer.override.batch.size": "262144",
    "producer.override.compression.type": "lz4",
}
"""For connectors in Kafka Connect: larger requests, as both documentations recommend for throughput."""
SPARK_PYTHON = "3.5.7"


def debezium_settings(uri: str, start: list[int] | None, more: Mapping[str, str]) -> dict[str, str]:
    """Debezium's MongoDB connector: changes only, no lookups, no snapshot."""
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
        "mongodb.connection.string": uri,
        "topic.prefix": "bench",
        "collection.include.list": "bench.orders",
        "capture.mode": "change_streams",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        **({"capture.start.op.time": str(start[0] << 32 | start[1])} if start else {}),
        **more,
    }


def mongo_settings(uri: str, start: list[int] | None, more: Mapping[str, str]) -> dict[str, str]:
    """MongoDB's Kafka source connector: JSON as text."""
    place = {
        "startup.mode": "timestamp",
        "startup.mode.timestamp.start.at.operation.time": json.dumps(
            {"$timestamp": {"t": start[0], "i": start[1]}}, separators=(",", ":")
        ),
    } if start else {"startup.mode": "latest"}  # fmt: skip
    return {
        "connector.class": "com.mongodb.kafka.connect.MongoSourceConnector",
        "connection.uri": uri,
        "database": "bench",
        "collection": "orders",
        "topic.prefix": "bench",
        **place,
        **more,
    }


def debezium_engine(
    name: str,
    kind: str,
    uri: str,
    start: list[int] | None,
    events: int,
    more: Mapping[str, str] | None = None,
) -> ProcessContestant | Unavailable:
    """Debezium's embedded engine; `kind` is `json`, `connect` or `latency`."""
    schemas = {"converter.schemas.enable": "false"} if kind != "connect" else {}
    settings = debezium_settings(uri, start, {**schemas, **(more or {})})
    return java_program(name, DEBEZIUM, "DebeziumDrain.java", settings, kind, events)


def mongo_task(
    name: str, kind: str, uri: str, start: list[int] | None, events: int, more: Mapping[str, str] | None = None
) -> ProcessContestant | Unavailable:
    """The task of MongoDB's Kafka connector, polled without a broker; `kind` is `drain` or `latency`."""
    settings = mongo_settings(uri, start, more or {})
    return java_program(name, MONGO_KAFKA, "MongoTaskDrain.java", settings, kind, events)


def spark_connector(
    name: str, uri: str, start: list[int], events: int, options: Mapping[str, str]
) -> ProcessContestant | Unavailable:
    """The MongoDB Spark Connector, in an environment with the Spark that it was made for."""
    try:
        jars = [str(jar) for jar in MONGO_SPARK.jars()]
        python = _spark_environment()
    except (TailraceError, ContestantFailed, OSError, subprocess.SubprocessError) as error:
        return Unavailable(name, f"it cannot be fetched: {error}")
    arguments = {"uri": uri, "start": start, "events": events, "jars": jars, "options": dict(options)}
    command = [str(python), "-m", "bench.child", "bench.spark_jobs:ConnectorSource", json.dumps(arguments)]
    return _WithSpark3(name, command, peer=True, warm_ups=1, settings={"pyspark": SPARK_PYTHON, **options})


class _WithSpark3(ProcessContestant):
    """A program in the other environment, untouched by what ours has set."""

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}
        return {**kept, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": self.command[0]}


def _spark_environment() -> Path:
    """An environment with pyspark 3.5, made on the first call (320 MB)."""
    folder = cache_folder() / f"bench-pyspark-{SPARK_PYTHON}"
    python = folder / "bin" / "python"
    if not any(folder.glob("lib/*/site-packages/pyspark/jars")):
        venv.create(folder, with_pip=True, clear=True)
        packages = [f"pyspark=={SPARK_PYTHON}", "setuptools"]
        print(f"fetching {packages[0]}", file=sys.stderr, flush=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True, timeout=900)
    return python
