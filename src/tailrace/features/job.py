"""The features job: change events in, one versioned step per entity in Redis, nothing kept in Spark.

A micro-batch is stateless: each task reduces its events to the newest state of each document and applies that to Redis,
where versions make every step repeatable. So a batch that Spark repeats after a crash changes nothing twice, and no
window holds an update back. Why the state lives in Redis is in docs/spark.md, with the figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, StructField, StructType

from tailrace.features import Definition, FeatureStore
from tailrace.features.changes import Collected
from tailrace.features.progress import Progress, ProgressStore
from tailrace.features.store import Outcome, version_before
from tailrace.logs import get_logger
from tailrace.raw.cluster_time import ClusterTime
from tailrace.spark.checkpoint import Recorded
from tailrace.spark.failures import explained
from tailrace.spark.from_kafka import (
    BAD_RECORD,
    Conversion,
    check_format,
    event_reader,
    from_dead_letters,
    from_kafka,
    is_records,
    kafka_records,
)
from tailrace.spark.handover import HandOver, collected
from tailrace.spark.jvm import HadoopFiles
from tailrace.spark.options import own_options
from tailrace.telemetry import NO_TRACING, SampledEvent, Sampler, TraceContext, Tracing
from tailrace.token import ResumeToken

_log = get_logger("tailrace.features")
COLUMNS = StructType([StructField("raw", BinaryType())])
"""What the job needs of an event: its BSON. One column is also the least that Spark has to hand on."""
_RESULT = (
    "documents long, entities long, stale long, unknown long, untimed long, bad long, position string, as_of long"
    ", ends string, sampled string"
)
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
    uri: str | None = field(default=None, repr=False)
    """Where the documents are, for when a rename (as `$out` ends with) puts another collection in place of this one."""
    tracing: Tracing = field(default=NO_TRACING, repr=False)
    """Where the spans of sampled events go."""
    handed_over: HandOver = field(default_factory=HandOver, repr=False, compare=False)
    """The rows of small batches, which come to a driver on this machine without a Spark job."""

    def prepare(self) -> None:
        """Leave the definition in Redis; refuses to mix two."""
        FeatureStore.connect(self.redis_url, self.definition).begin()

    def start(self, events: DataFrame, checkpoint: str, **trigger: Any) -> StreamingQuery:
        """Start the query on a stream of events that has the column of `COLUMNS`."""
        self.prepare()
        self.handed_over.expect(checkpoint)
        writer = events.writeStream.queryName(f"features {self.definition.name}").foreachBatch(self.apply)
        writer = writer.option("checkpointLocation", checkpoint)
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self.handed_over.follow(query)
        return query

    def apply(self, events: DataFrame, number: int) -> None:
        """Apply one micro-batch; any part of it may have been applied before."""
        with explained():
            self._apply(events, number)

    def _apply(self, events: DataFrame, number: int) -> None:
        progress_store = _progress_store(self.redis_url, self.definition.name)
        began = time.time_ns()

        def once() -> list[Row]:
            progress_store.check(number)
            rows = self._applied(events, number)
            bad = sum(row.bad for row in rows)
            if bad and self.format is not None and not any(row.position for row in rows):
                check_format(self.format, bad, bytes(self._bad_records(events).take(1)[0].bad_record))
            if bad:
                self._write_dead_letters(events, number)
            for end in _newest_ends(rows):
                self._end(events.sparkSession, end)
            newest = max((row for row in rows if row.position), key=lambda row: row.position, default=None)
            progress_store.save(Progress(number, newest.position if newest else "", newest.as_of if newest else 0))
            return rows

        rows = progress_store.undisturbed(once)
        self._report(rows)
        if self.tracing.is_on:
            sampled = [_sampled_event(*form) for row in rows for form in json.loads(row.sampled or "[]")]
            self.tracing.applied(sampled, f"features {self.definition.name}", began, is_direct=self.format is None)

    def _report(self, rows: Sequence[Row]) -> None:
        """Warn of what does not count as it should."""
        unknown, untimed = sum(row.unknown for row in rows), sum(row.untimed for row in rows)
        if unknown:
            _log.warning("updates_of_unknown_documents", count=unknown, hint="run with --backfill")
        if untimed:
            times = ", ".join(dict.fromkeys(source.time for source in self.definition.sources))
            _log.warning("documents_without_time", count=untimed, field=times, hint="no rolling window has them")

    def backfill(self, spark: SparkSession, uri: str, options: Mapping[str, str] | None = None) -> str:
        """Fill the features from the documents as they are; gives the time to start the stream at, without a hole.

        Documents that Redis knows from before and that are not among them were deleted while nobody followed.
        """
        from tailrace.capture.snapshot.reading import watermark
        from tailrace.spark.parts import connected

        self.prepare()
        at = watermark(connected(uri))
        progress_store = _progress_store(self.redis_url, self.definition.name)
        mark = ResumeToken.high_water_mark(at).hex

        def fill() -> None:
            self._read_documents(spark, uri, options)
            _store(self.redis_url, self.definition).forget_before(mark)
            progress_store.filled(mark, at.time)

        progress_store.undisturbed(fill)
        return f"{at.time}:{at.inc}"

    def _read_documents(self, spark: SparkSession, uri: str, options: Mapping[str, str] | None = None) -> None:
        namespaces = ",".join(self.definition.namespaces)
        chosen = {**own_options(uri), "namespaces": namespaces, **(options or {}), "snapshot": "true"}
        frame = spark.read.format("tailrace").options(**chosen).schema(COLUMNS).load()
        self._report(self._applied_in_tasks(frame))  # all at once would be too much for the driver

    def recorded(self) -> Recorded | None:
        """Say how far the features in Redis are, where a job has written some before."""
        known = _progress_store(self.redis_url, self.definition.name).position()
        if known is None:
            return None
        position, as_of = known
        until = f"{datetime.fromtimestamp(as_of, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return Recorded(f"Redis ({self.definition.name})", until, {"startAfter": position})

    def events(self, spark: SparkSession, uri: str, options: Mapping[str, str] | None = None) -> DataFrame:
        """Read the stream of the definition's collection directly from MongoDB."""
        chosen = {
            **own_options(uri),
            "namespaces": ",".join(self.definition.namespaces),
            "fullDocument": "updateLookup",
            "partitionBy": "key",
            **({"maxEventsPerBatch": str(EVENTS_PER_BATCH), **self.handed_over.options()} if self.in_driver else {}),
            **(options or {}),
        }
        return spark.readStream.format("tailrace").options(**chosen).schema(COLUMNS).load()

    def records(
        self, spark: SparkSession, servers: str, topics: Sequence[str], options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Read the stream from topics. The driver makes the events of their records itself, without a Python worker."""
        assert self.format is not None
        if self._reader is not None:
            return kafka_records(spark, servers, topics, format=self.format, limit=EVENTS_PER_BATCH, options=options)
        return from_kafka(
            spark,
            servers,
            topics,
            format=self.format,
            schema=COLUMNS,
            max_events_per_batch=EVENTS_PER_BATCH,
            keep_bad_records=True,
            options=options,
        )

    @property
    def _reader(self) -> Conversion | None:
        """What makes events of the rows, where they are records as they are."""
        if self.format is None or not self.in_driver:
            return None
        return event_reader(self.format, COLUMNS, keep_bad_records=True)

    def _applied(self, events: DataFrame, number: int) -> list[Row]:
        """Apply a micro-batch, here or in its tasks; gives a row for each part of it."""
        if not self.in_driver:
            return self._applied_in_tasks(events)
        found = self.handed_over.take(number)
        if found is None and (found := collected(events)) is None:
            return self._applied_in_tasks(events)
        rows: Iterable[pa.RecordBatch] = found.to_batches()
        if self._reader is not None:
            rows = self._reader(rows)
        results = _applying(self.definition, self.redis_url, self.tracing.sampler.ratio)(rows)
        return [Row(**row) for batch in results for row in batch.to_pylist()]

    def _applied_in_tasks(self, events: DataFrame) -> list[Row]:
        apply = _applying(self.definition, self.redis_url, self.tracing.sampler.ratio)
        return self._events(events).mapInArrow(apply, _RESULT).collect()

    def replay_dead_letters(self, spark: SparkSession) -> tuple[int, int]:
        """Apply the dead letters that can be read now; gives how many were, and how many were not, which stay.

        Every step is versioned, so what was overtaken meanwhile changes nothing.
        """
        assert self.format is not None
        folder, files = f"{self.dead_letters}/{self.definition.name}", HadoopFiles.of(spark)
        before = files.names(folder) if files is not None else []
        if files is None or not before:
            return 0, 0
        self.prepare()
        events = from_dead_letters(spark.read.parquet(folder), self.format, COLUMNS)
        total, left = events.count(), events.where("cause IS NOT NULL").select("bad_record", "cause").collect()
        self._report(self._applied_in_tasks(events))
        if left:
            kept = spark.createDataFrame(left, BAD_RECORD)
            kept.write.parquet(f"{folder}/batch=replayed-{int(datetime.now(UTC).timestamp() * 1000)}")
        for name in before:
            files.remove(f"{folder}/{name}")
        return total - len(left), len(left)

    def _events(self, frame: DataFrame) -> DataFrame:
        """Make events of records, in tasks."""
        if self._reader is None or not is_records(frame):
            return frame
        return frame.mapInArrow(self._reader, StructType([*COLUMNS.fields, *BAD_RECORD.fields]))

    def _bad_records(self, events: DataFrame) -> DataFrame:
        return self._events(events).where("cause IS NOT NULL").select("bad_record", "cause")

    def _write_dead_letters(self, events: DataFrame, number: int) -> None:
        """Keep the bad records of a batch with their causes; a repeated batch writes the same folder again."""
        assert self.dead_letters is not None  # only `keep_bad_records` makes rows without an event
        bad = self._bad_records(events)
        bad.write.mode("overwrite").parquet(f"{self.dead_letters}/{self.definition.name}/batch={number}")
        _log.warning("dead_letters_written", batch=number, where=str(self.dead_letters))

    def _end(self, spark: SparkSession, end: _End) -> None:
        """A collection is gone, with what its documents contributed; another one may have come by a rename.

        The documents of that one had events under another name, if at all, so they are read.
        """
        namespace = "" if end.namespace == self.definition.namespace else end.namespace
        _store(self.redis_url, self.definition).end_before(end.version, end.as_of, namespace)
        if end.is_replaced and self.uri is not None:
            self._read_documents(spark, self.uri, {"namespaces": end.namespace})
        elif end.is_replaced:
            _log.warning("collection_replaced_by_rename", namespace=end.namespace, hint="run with --backfill")


@dataclass(frozen=True, slots=True)
class _End:
    """What a batch says of the end of one collection."""

    namespace: str
    version: str
    as_of: int
    is_replaced: bool


def _newest_ends(rows: Sequence[Row]) -> list[_End]:
    """Give the newest end of each collection that ended in a batch."""
    newest: dict[str, _End] = {}
    for row in rows:
        for form in json.loads(row.ends or "[]"):
            end = _End(*form)
            if end.namespace not in newest or end.version > newest[end.namespace].version:
                newest[end.namespace] = end
    return list(newest.values())


@lru_cache(maxsize=8)
def _store(url: str, definition: Definition) -> FeatureStore:
    """Give the store of this process; workers are used again, and so are their connections."""
    return FeatureStore.connect(url, definition)


@lru_cache(maxsize=8)
def _progress_store(url: str, name: str) -> ProgressStore:
    """Give the record of progress, with a connection that serves all batches."""
    return ProgressStore.connect(url, name)


def _applying(definition: Definition, url: str, sample_ratio: float = 0.0) -> Conversion:
    """Make the function that runs in the tasks: all events of a partition are one step."""

    def apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with explained():
            found = Collected(definition, Sampler(sample_ratio))
            for batch in batches:
                found.add(batch)
            outcome = _store(url, definition).apply(found.changes) if found.changes else Outcome()
        yield _result(found, outcome)

    return apply


def _result(collected: Collected, outcome: Outcome) -> pa.RecordBatch:
    """Give the one row that the driver gets."""
    ends = [
        (namespace, version_before(end.moment[1]), ClusterTime(end.moment[0]).seconds, end.to == namespace)
        for namespace, end in collected.ends.items()
    ]
    row = {
        **asdict(outcome),
        "bad": collected.bad,
        "position": collected.position,
        "as_of": collected.as_of,
        "ends": json.dumps(ends),
        "sampled": json.dumps(collected.sampled),
    }
    return pa.RecordBatch.from_pylist([row], schema=_ARROW_RESULT)


def _sampled_event(token: str, namespace: str, operation: str, written: int) -> SampledEvent:
    return SampledEvent(TraceContext.of(token), namespace, operation, written)


_ARROW_RESULT = pa.schema(
    [(name, {"long": pa.int64(), "string": pa.string()}[kind]) for name, kind in map(str.split, _RESULT.split(", "))]
)
