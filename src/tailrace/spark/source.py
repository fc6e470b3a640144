"""`format("tailrace")`: change events as a source of Spark, in batches and as a stream.

    events = spark.readStream.format("tailrace").option("uri", uri).option("namespaces", "shop.orders").load()

Offsets are positions, so Spark's own checkpoint is the token store. A micro-batch is the closed range (start, end] of
two positions, and reading it again gives the same events, inlined in the task or read from the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tailrace.capture.snapshot.chunk import plan_collection
from tailrace.capture.snapshot.reading import watermark
from tailrace.capture.source.source import captured_collections
from tailrace.errors import SettingsError
from tailrace.spark.columns import ENVELOPE, EventColumns
from tailrace.spark.failures import explained, task
from tailrace.spark.handover import hand_over
from tailrace.spark.inference import inferred_schema
from tailrace.spark.jvm import PrefetchingReader
from tailrace.spark.offset import Offset
from tailrace.spark.options import SourceOptions
from tailrace.spark.parts import Documents, Inlined, Part, Range, ShardRange, connected, event_source, range_parts
from tailrace.spark.planner import Planner, newest
from tailrace.spark.redaction import hide_secrets

_EVENTS_PER_ROW_BATCH: Final = 1_000
"""What is made for so many events stays in the processor's caches; ten times as many cost a fifth more each."""
_MOST_SCHEMA_BYTES: Final = 32 * 1024
"""Half of what PySpark buffers before it sends (`spark.buffer.size`)."""


class TailraceDataSource(DataSource):
    """What Spark asks about `format("tailrace")`."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "tailrace"

    def schema(self) -> StructType:
        """The envelope; with `inferSchema` the images in it are structs."""
        options = self._options()
        if not options.infer_schema:
            return ENVELOPE
        with explained():
            client = connected(options.uri)
            collections = captured_collections(client, options.selection)
            return inferred_schema(client, collections, options.sampling_size, options.policy)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one batch."""
        return BatchReader(self._options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a stream."""
        options = self._options()
        with explained():
            if options.snapshot:
                raise SettingsError(
                    "the option snapshot is for spark.read",
                    hint="Read the snapshot as a batch, then stream from its cluster_time with startAtOperationTime.",
                )
        return StreamReader(options, schema)

    def _options(self) -> SourceOptions:
        with explained():
            return SourceOptions.parse(self.options)


def register(spark: SparkSession) -> None:
    """Let a session know `format("tailrace")`, whose option `uri` may hold a password."""
    hide_secrets(spark)
    spark.dataSource.register(TailraceDataSource)


def _rows(options: SourceOptions, schema: StructType, part: Any) -> Iterator[pa.RecordBatch]:
    columns = EventColumns(schema, fail_fast=options.fail_fast)
    parts: Part = part
    with task():
        for events in parts.batches(options):
            for begin in range(0, len(events), _EVENTS_PER_ROW_BATCH):
                some = events[begin : begin + _EVENTS_PER_ROW_BATCH]
                yield columns.batch(options.policy.events(some) if options.policy else some)


class BatchReader(DataSourceReader):
    """Reads a range of history, or the documents of collections as of one time."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the work between tasks."""
        with explained():
            parts: Sequence[Part] = self._documents() if self._options.snapshot else self._history()
            return parts or [_nothing()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        return _rows(self._options, self._schema, partition)

    def _documents(self) -> list[Documents]:
        client = event_source(self._options).documents()
        at = watermark(client)
        collections = captured_collections(client, self._options.selection)
        return [Documents(chunk, at) for name in collections for chunk in plan_collection(client, name)]

    def _history(self) -> Sequence[Range | ShardRange]:
        start = self._options.start
        if start is None:
            hint = "Give startAfter or startAtOperationTime, or the option snapshot for the documents as they are."
            raise SettingsError("a batch of history needs a beginning", hint=hint)
        end = self._options.end or newest(event_source(self._options))
        return range_parts(start, end, self._options)


class StreamReader(PrefetchingReader):
    """Plans micro-batches in one long-lived process, and reads their parts in the tasks.

    The rows of a small batch go from here to the JVM as they are, so that no task needs a Python worker.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None
        self._sent: Sequence[bytes] | None = None
        """The events of the batch that was just planned, when its rows go along."""

    def initialOffset(self) -> dict[str, Any]:
        """The same for every start of the query: before the first batch, or where the options say."""
        return (self._options.start or Offset(None)).to_json()

    def latestOffset(self) -> dict[str, Any]:
        """Where the next batch ends."""
        with explained():
            return self._planning().latest().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide a batch between tasks. The rows of a single part go along; a task without them reads the range."""
        begin, stop = Offset.from_json(start), Offset.from_json(end)
        with explained():
            parts = self._planning().parts(begin, stop) or [_nothing()]
        match parts:
            case [Inlined(events)]:
                self._sent = events
                return [Range(begin, stop)] if events else parts
        self._sent = None
        return parts

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:
        """Give the rows that go along with the parts that were just planned, or None when the tasks read them.

        They are one record batch. If this process is killed while it sends several, the JVM (Spark 4.0) takes the end
        of the connection between two of them, or between the schema and the first, for the end of the rows: it never
        asks for what Arrow writes at the end of a stream. The batch would go on without the rest, and be committed. An
        end within a record batch is an error there, and small schemas leave in one piece with what follows.
        """
        sent, self._sent = self._sent, None
        if sent is None:
            return None
        folder = self._options.hand_over
        if folder and sent and hand_over(folder, start, end, _rows(self._options, self._schema, Inlined(sent))):
            return None
        if not sent:
            return iter(())
        whole = pa.concat_batches(list(_rows(self._options, self._schema, Inlined(sent))))
        return iter([whole]) if whole.schema.serialize().size <= _MOST_SCHEMA_BYTES else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        return _rows(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a batch that is done: the checkpoint has its position."""

    def stop(self) -> None:
        """End the reading ahead."""
        if self._planner is not None:
            self._planner.close()

    def _planning(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(event_source(self._options), self._options)
        return self._planner


def _nothing() -> Inlined:
    """A part without events: Spark wants at least one."""
    return Inlined(())
