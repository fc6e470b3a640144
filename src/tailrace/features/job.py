"""The features job: change events in, one versioned step per entity in Redis, nothing kept in Spark.

A micro-batch is stateless: each task reduces its events to the newest state of each document and applies that to Redis,
where versions make every step repeatable. So a batch that Spark repeats after a crash changes nothing twice, and no
window holds an update back. Why the state lives in Redis is in docs/spark.md, with the figures.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from tailrace.features import Definition, FeatureStore
from tailrace.features.changes import Collected
from tailrace.features.progress import Progress, ProgressKeeper
from tailrace.features.store import Outcome
from tailrace.spark.failures import explained
from tailrace.spark.from_kafka import BAD_RECORD, Conversion, event_reader, from_kafka, kafka_records

_log = logging.getLogger("tailrace.features")
COLUMNS = StructType([StructField("raw", BinaryType())])
"""What the job needs of an event: its BSON. One column is also the least that Spark has to hand on."""
_RESULT = "documents long, entities long, stale long, unknown long, bad long, position string, as_of long, drops string"
EVENTS_PER_BATCH = 10_000
"""Where batches end that are applied in the driver."""


@dataclass(frozen=True, slots=True)
class FeatureJob:
    """Keeps the features of one definition in one Redis."""

    definition: Definition
    redis_url: str
    dead_letters: str | None = None
    """Where records that cannot be read go (a folder of Parquet files); without it they end the query."""
    in_driver: bool = False
    """Apply batches in the driver: faster on one machine (docs/spark.md). Only for streams with limited batches."""
    format: str | None = None
    """The format of topics that are read by `records`."""

    def prepare(self) -> None:
        """Leave the definition in Redis; refuses to mix two."""
        FeatureStore.connect(self.redis_url, self.definition).begin()

    def start(self, events: DataFrame, checkpoint: str, **trigger: Any) -> StreamingQuery:
        """Start the query on a stream of events that has the column of `COLUMNS`."""
        self.prepare()
        writer = events.writeStream.queryName(f"features {self.definition.name}").foreachBatch(self.apply)
        writer = writer.option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def apply(self, events: DataFrame, number: int) -> None:
        """Apply one micro-batch; any part of it may have been applied before."""
        with explained():
            self._apply(events, number)

    def _apply(self, events: DataFrame, number: int) -> None:
        keeper = _keeper(self.redis_url, self.definition.name)

        def once() -> list[Row]:
            keeper.check(number)
            rows = self._applied(events)
            if any(row.bad for row in rows):
                self._bury(events, number)
            for row in rows:
                if row.drops:
                    self._forget_all(row.drops)
            newest = max((row for row in rows if row.position), key=lambda row: row.position, default=None)
            keeper.save(Progress(number, newest.position if newest else "", newest.as_of if newest else 0))
            return rows

        unknown = sum(row.unknown for row in keeper.undisturbed(once))
        if unknown:
            _log.warning("%d updates of documents that were never seen were left out; run with --backfill", unknown)

    def backfill(self, spark: SparkSession, uri: str, options: Mapping[str, str] | None = None) -> str:
        """Fill the features from the documents as they are; gives the time to start the stream at, without a hole."""
        from tailrace.capture.snapshot.reading import watermark
        from tailrace.spark.parts import connected

        self.prepare()
        at = watermark(connected(uri))
        chosen = {**(options or {}), "uri": uri, "namespaces": self.definition.namespace, "snapshot": "true"}
        frame = spark.read.format("tailrace").options(**chosen).schema(COLUMNS).load()
        keeper = _keeper(self.redis_url, self.definition.name)
        keeper.undisturbed(lambda: self._applied_in_tasks(frame))  # all at once would be too much for the driver
        return f"{at.time}:{at.inc}"

    def events(self, spark: SparkSession, uri: str, options: Mapping[str, str] | None = None) -> DataFrame:
        """Read the stream of the definition's collection directly from MongoDB."""
        chosen = {
            "uri": uri,
            "namespaces": self.definition.namespace,
            "fullDocument": "updateLookup",
            "partitionBy": "key",
            **({"maxEventsPerBatch": str(EVENTS_PER_BATCH)} if self.in_driver else {}),
            **(options or {}),
        }
        return spark.readStream.format("tailrace").options(**chosen).schema(COLUMNS).load()

    def records(self, spark: SparkSession, servers: str, topics: Sequence[str]) -> DataFrame:
        """Read the stream from topics. The driver makes the events of their records itself, without a Python worker."""
        assert self.format is not None
        if self._reader is not None:
            return kafka_records(spark, servers, topics, format=self.format, limit=EVENTS_PER_BATCH)
        return from_kafka(
            spark,
            servers,
            topics,
            format=self.format,
            schema=COLUMNS,
            max_events_per_batch=EVENTS_PER_BATCH,
            keep_bad_records=True,
        )

    @property
    def _reader(self) -> Conversion | None:
        """What makes events of the rows, where they are records as they are."""
        if self.format is None or not self.in_driver:
            return None
        return event_reader(self.format, COLUMNS, keep_bad_records=True)

    def _applied(self, events: DataFrame) -> list[Row]:
        """Apply a micro-batch, here or in its tasks; gives a row for each part of it."""
        if not self.in_driver:
            return self._applied_in_tasks(events)
        rows: Iterable[pa.RecordBatch] = events.toArrow().to_batches()
        if self._reader is not None:
            rows = self._reader(rows)
        results = _applying(self.definition, self.redis_url)(rows)
        return [Row(**row) for batch in results for row in batch.to_pylist()]

    def _applied_in_tasks(self, events: DataFrame) -> list[Row]:
        return events.mapInArrow(_applying(self.definition, self.redis_url), _RESULT).collect()

    def _bury(self, events: DataFrame, number: int) -> None:
        """Keep the bad records of a batch with their causes; a repeated batch writes the same folder again."""
        assert self.dead_letters is not None  # only `keep_bad_records` makes rows without an event
        if self._reader is not None:
            events = events.mapInArrow(self._reader, StructType([*COLUMNS.fields, *BAD_RECORD.fields]))
        bad = events.where("cause IS NOT NULL").select("bad_record", "cause")
        bad.write.mode("overwrite").parquet(f"{self.dead_letters}/{self.definition.name}/batch={number}")
        _log.warning("batch %d has records that cannot be read; they are in %s", number, self.dead_letters)

    def _forget_all(self, version: str) -> None:
        """The collection is gone, and so is what its documents contributed."""
        _store(self.redis_url, self.definition).forget_before(version)


@lru_cache(maxsize=8)
def _store(url: str, definition: Definition) -> FeatureStore:
    """Give the store of this process; workers are used again, and so are their connections."""
    return FeatureStore.connect(url, definition)


@lru_cache(maxsize=8)
def _keeper(url: str, name: str) -> ProgressKeeper:
    """Give the record of progress, with a connection that serves all batches."""
    return ProgressKeeper.connect(url, name)


def _applying(definition: Definition, url: str) -> Conversion:
    """Make the function that runs in the tasks: all events of a partition are one step."""

    def apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with explained():
            collected = Collected(definition)
            for batch in batches:
                collected.add(batch)
            outcome = _store(url, definition).apply(collected.changes) if collected.changes else Outcome()
        yield _result(collected, outcome)

    return apply


def _result(collected: Collected, outcome: Outcome) -> pa.RecordBatch:
    """Give the one row that the driver gets."""
    row = {
        **asdict(outcome),
        "bad": collected.bad,
        "position": collected.position,
        "as_of": collected.as_of,
        "drops": collected.drops,
    }
    return pa.RecordBatch.from_pylist([row], schema=_ARROW_RESULT)


_ARROW_RESULT = pa.schema(
    [(name, {"long": pa.int64(), "string": pa.string()}[kind]) for name, kind in map(str.split, _RESULT.split(", "))]
)
