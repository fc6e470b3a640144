"""The MongoDB Spark Connector on a stream of bench/spark.py; runs in an environment of its own, with pyspark 3.5.7.

python spark_rival.py CONNECTOR URI START_SECONDS EVENTS ROUNDS FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType

SECONDS_TO_FINISH = 600


def drain(spark: Any, uri: str, start: str, count: int, checkpoint: str) -> float:
    """Read the stream into nothing until all events have come; gives the seconds it took."""
    schema = StructType()
    for name in ("_id", "operationType", "clusterTime", "ns", "documentKey", "fullDocument"):
        schema = schema.add(name, StringType())
    options = {
        "connection.uri": uri,
        "database": "bench",
        "collection": "tx",
        "change.stream.startup.mode": "timestamp",
        "change.stream.startup.mode.timestamp.start.at.operation.time": start,
        "change.stream.micro.batch.max.partition.count": "2",
    }
    frame = spark.readStream.format("mongodb").options(**options).schema(schema).load()
    deadline = time.monotonic() + SECONDS_TO_FINISH
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    while sum(progress["numInputRows"] for progress in query.recentProgress) < count:
        if query.exception():
            raise query.exception()
        if time.monotonic() > deadline:
            sys.exit("the events did not come in time")
        time.sleep(0.05)
    query.stop()
    return busy_seconds(query.recentProgress)


def busy_seconds(progress: list[Any]) -> float:
    """Give the time from the beginning of the first batch with events to the end of the last; no start-up is in it."""
    batches = [one for one in progress if one["numInputRows"]]
    begins = [datetime.fromisoformat(one["timestamp"].rstrip("Z")).timestamp() for one in batches]
    ends = [begin + one["durationMs"]["triggerExecution"] / 1000 for begin, one in zip(begins, batches, strict=True)]
    return max(ends) - min(begins)


def main() -> None:
    connector, uri, start, count, rounds, folder = sys.argv[1:]
    config = {
        "spark.jars.packages": connector,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    took = [drain(spark, uri, start, int(count), f"{folder}/{number}") for number in range(int(rounds))]
    print("RESULT " + json.dumps(took))


if __name__ == "__main__":
    main()
