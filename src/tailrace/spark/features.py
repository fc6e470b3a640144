"""The features job: change events in, one versioned step per entity in Redis, nothing kept in Spark.

A micro-batch is stateless: each task reduces its events to the newest state of each document and applies that to Redis,
where versions make every step repeatable. So a batch that Spark repeats after a crash changes nothing twice, and no
window holds an update back. Why the state lives in Redis is in docs/spark.md, with the figures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import raw
from tailrace.capture.formats import extended_json
from tailrace.features import Definition, FeatureStore
from tailrace.features.progress import Progress, ProgressKeeper
from tailrace.features.store import Change, Outcome
from tailrace.spark.failures import explained

_log = logging.getLogger("tailrace.features")
COLUMNS = (
    "token string, cluster_time long, wall_time timestamp, op string, db string, coll string"
    ", document_key binary, full_document binary, update_description binary"
)
"""What the job needs of an event; documents stay BSON, and only the declared fields are decoded."""
_RESULT = (
    "documents long, entities long, stale long, unknown long, bad long"
    ", position string, cluster_time long, drops string"
)
EVENTS_PER_BATCH = 10_000
"""Where batches end that are applied in the driver."""
_ENDS = {"drop", "rename", "dropDatabase"}


@dataclass(frozen=True, slots=True)
class FeatureJob:
    """Keeps the features of one definition in one Redis."""

    definition: Definition
    redis_url: str
    dead_letters: str | None = None
    """Where records that cannot be read go (a folder of Parquet files); without it they end the query."""
    in_driver: bool = False
    """Apply batches in the driver: faster on one machine (docs/spark.md). Only for streams with limited batches."""

    def prepare(self) -> None:
        """Leave the definition in Redis; refuses to mix two."""
        FeatureStore.connect(self.redis_url, self.definition).begin()

    def start(self, events: DataFrame, checkpoint: str, **trigger: Any) -> StreamingQuery:
        """Start the query on a stream of events with the columns `COLUMNS`."""
        self.prepare()
        writer = events.writeStream.queryName(f"features {self.definition.name}").foreachBatch(self.apply)
        writer = writer.option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def apply(self, events: DataFrame, number: int) -> None:
        """Apply one micro-batch; any part of it may have been applied before."""
        with explained():
            self._apply(events, number)

    def _apply(self, events: DataFrame, number: int) -> None:
        keeper = ProgressKeeper.connect(self.redis_url, self.definition.name)
        keeper.check(number)
        rows = self._applied(events)
        if any(row.bad for row in rows):
            self._bury(events, number)
        for row in rows:
            if row.drops:
                self._forget_all(row.drops)
        newest = max((row for row in rows if row.position), key=lambda row: row.position, default=None)
        position, time = (newest.position, newest.cluster_time) if newest else ("", 0)
        keeper.save(Progress(number, position, time >> 32))
        unknown = sum(row.unknown for row in rows)
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
        self._applied(frame)
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

    def _applied(self, events: DataFrame) -> list[Row]:
        chosen = events.select(*(column.split()[0] for column in COLUMNS.split(", ")))
        apply = _applying(self.definition, self.redis_url)
        if not self.in_driver:
            return chosen.mapInArrow(apply, _RESULT).collect()
        return [Row(**row) for batch in apply(chosen.toArrow().to_batches()) for row in batch.to_pylist()]

    def _bury(self, events: DataFrame, number: int) -> None:
        """Keep the bad records of a batch with their causes; a repeated batch writes the same folder again."""
        assert self.dead_letters is not None  # only `keep_bad_records` makes rows without an event
        bad = events.where("cause IS NOT NULL").select("bad_record", "cause")
        bad.write.mode("overwrite").parquet(f"{self.dead_letters}/{self.definition.name}/batch={number}")
        _log.warning("batch %d has records that cannot be read; they are in %s", number, self.dead_letters)

    def _forget_all(self, version: str) -> None:
        """The collection is gone, and so is what its documents contributed."""
        FeatureStore.connect(self.redis_url, self.definition).forget_before(version)


@lru_cache(maxsize=8)
def _store(url: str, definition: Definition) -> FeatureStore:
    """Give the store of this worker; workers are used again, and so are their connections."""
    return FeatureStore.connect(url, definition)


def _applying(definition: Definition, url: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function that runs in the tasks: all events of a partition are one step."""

    def apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with explained():
            collected = _Collected(definition)
            for batch in batches:
                collected.add(batch)
            outcome = _store(url, definition).apply(collected.changes) if collected.changes else Outcome()
        yield collected.result(outcome)

    return apply


class _Collected:
    """The changes in a partition, and how far it reaches."""

    def __init__(self, definition: Definition) -> None:
        self._database, _, self._collection = definition.namespace.partition(".")
        self.changes: list[Change] = []
        self._position = ""
        self._cluster_time = 0
        self._drops = ""
        self._bad = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a record batch."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        wall = columns.pop("wall_time").cast(pa.int64()).to_pylist()
        rows = zip(*(column.to_pylist() for column in columns.values()), wall, strict=True)
        for token, cluster_time, operation, database, collection, key, document, update, wall_us in rows:
            if token is None:
                self._bad += 1
                continue
            if token > self._position:
                self._position, self._cluster_time = token, cluster_time
            if database != self._database or collection not in (self._collection, None):
                continue
            if operation in _ENDS:
                self._drops = max(self._drops, token)
            elif key is not None:
                self.changes.append(_change(token, cluster_time, operation, key, document, update, wall_us))

    def result(self, outcome: Outcome) -> pa.RecordBatch:
        """Give the one row that the driver gets."""
        row = {
            **asdict(outcome),
            "bad": self._bad,
            "position": self._position,
            "cluster_time": self._cluster_time,
            "drops": self._drops,
        }
        return pa.RecordBatch.from_pylist([row], schema=_ARROW_RESULT)


_ARROW_RESULT = pa.schema(
    [(name, {"long": pa.int64(), "string": pa.string()}[kind]) for name, kind in map(str.split, _RESULT.split(", "))]
)


def _change(
    token: str,
    cluster_time: int,
    operation: str,
    key: bytes,
    document: bytes | None,
    update: bytes | None,
    wall_us: int | None,
) -> Change:
    """Make the change of a row; a lookup that found nothing is no delete."""
    return Change(
        _key_text(key),
        token,
        document,
        update if document is None else None,
        operation == "delete",
        cluster_time >> 32,
        None if wall_us is None else wall_us // 1000,
    )


def _key_text(key: bytes) -> str:
    """Give the documentKey as text: the `_id` alone, which is what identifies a document."""
    span = raw.find(key, b"_id")
    identity = key if span is None else raw.document(raw.element(span[0], b"_id", key[span[1] : span[2]]))
    return extended_json.relaxed(extended_json.decode(identity)["_id"], identity).decode()
