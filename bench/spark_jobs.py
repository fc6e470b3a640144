"""Streams read into Spark's noop sink: `format("tailrace")`, and the MongoDB Spark Connector.

The connector has no release for Spark 4, so it runs on pyspark 3.5.7; this module therefore imports nothing at its top
that is not in both environments. A query's time is counted from the beginning of its first batch with events to the end
of the last: starting a query is in nobody's figure.
"""

from __future__ import annotations

import tempfile
import time
from datetime import datetime
from typing import Any

from bench.child import Marks, say_mark

COLUMNS = (
    "token string, op string, cluster_time timestamp, db string, coll string, document_key string, full_document string"
)
"""What the rival is asked for too."""
_SECONDS_TO_FINISH = 300


class TailraceSource:
    """Our source, `change-stream` or `oplog`."""

    def __init__(self, uri: str, start: list[int], events: int, source: str, scope: str = "cluster") -> None:
        from tailrace.cli.spark_session import spark_session
        from tailrace.settings import SparkSettings

        settings = SparkSettings(master="local[2]", log_level="error", driver_memory="1g")
        self._session = spark_session(settings)
        spark = self._session.__enter__()
        options = {"uri": uri, "namespaces": "bench.orders", "source": source, "scope": scope}
        options["startAtOperationTime"] = f"{start[0]}:{start[1]}"
        self._frame = spark.readStream.format("tailrace").options(**options).schema(COLUMNS).load()
        some = {"endAtOperationTime": f"{start[0] + 1}:0", "partitions": "2", "partitionBy": "key"}
        self._some = spark.read.format("tailrace").options(**options, **some).schema(COLUMNS).load()

    def run(self, marks: Marks) -> None:
        """Read all events once.

        Spark ends Python workers that had nothing to do for a minute, and others' turns take longer. To start them is
        part of starting a query, so they are woken first.
        """
        self._some.count()
        drain(self._frame, marks)


class ConnectorSource:
    """The MongoDB Spark Connector."""

    def __init__(self, uri: str, start: list[int], events: int, jars: list[str], options: dict[str, str]) -> None:
        from pyspark.sql import SparkSession
        from pyspark.sql.types import StringType, StructType

        builder = SparkSession.builder.master("local[2]")
        config = {
            "spark.jars": ",".join(jars),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        for name, value in config.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        schema = StructType()
        for name in ("_id", "operationType", "clusterTime", "ns", "documentKey", "fullDocument"):
            schema = schema.add(name, StringType())
        place = {
            "connection.uri": uri,
            "database": "bench",
            "collection": "orders",
            "change.stream.startup.mode": "timestamp",
            "change.stream.startup.mode.timestamp.start.at.operation.time": str(start[0]),
        }
        self._frame = spark.readStream.format("mongodb").options(**place, **options).schema(schema).load()

    def run(self, marks: Marks) -> None:
        """Read all events once."""
        drain(self._frame, marks)


def drain(frame: Any, marks: Marks) -> None:
    """Run a query until all events have come."""
    deadline = time.monotonic() + _SECONDS_TO_FINISH
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        marks.begin()
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            while (seen := sum(one["numInputRows"] for one in query.recentProgress)) < marks.events:
                if query.exception():
                    raise query.exception()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{seen} of {marks.events} events came")
                time.sleep(0.02)
            say_mark("done", seen, busy_seconds(query.recentProgress))
        finally:
            query.stop()


def busy_seconds(progress: list[Any]) -> float:
    """The time from the beginning of the first batch with events to the end of the last."""
    batches = [one for one in progress if one["numInputRows"]]
    begins = [datetime.fromisoformat(one["timestamp"].rstrip("Z")).timestamp() for one in batches]
    ends = [begin + one["durationMs"]["triggerExecution"] / 1000 for begin, one in zip(begins, batches, strict=True)]
    return max(ends) - min(begins)
