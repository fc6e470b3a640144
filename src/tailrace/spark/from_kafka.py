"""Change events from Kafka: the same columns as `format("tailrace")` gives, whatever format the topics have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tailrace.capture.formats import decoder_of, event_decoder_of
from tailrace.capture.formats.stored_records import KafkaRecord, ReadEvent, RecordDecoder
from tailrace.errors import FormatMismatch, SettingsError
from tailrace.spark.columns import ENVELOPE, EventColumns, in_order
from tailrace.spark.failures import task
from tailrace.spark.jvm import without_v1_relation
from tailrace.spark.kafka_options import kafka_options
from tailrace.spark.redaction import hide_secrets

BAD_RECORD = StructType([StructField("bad_record", BinaryType()), StructField("cause", StringType())])
"""The columns that come along with `keep_bad_records`: the value of a record that cannot be read, and why."""

Conversion = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def from_kafka(
    spark: SparkSession,
    servers: str,
    topics: Sequence[str] | str,
    *,
    format: str = "bson",
    schema: StructType | str | None = None,
    stream: bool = True,
    starting_offsets: str = "earliest",
    max_events_per_batch: int | None = None,
    keep_bad_records: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read topics as change events.

    `servers` is `host:9092,host:9092`, or the URL of a secured cluster as the producer has it
    (`kafka://user:password@host:9092?ssl.ca.location=ca.pem`). `topics` are names, or one pattern in slashes
    (`/shop\\..*/`). `format` is that of the capture (json, canonical, bson, flat, debezium); `debezium` reads what
    Debezium's own connectors wrote too. `schema` declares columns as for `format("tailrace")`. A record that cannot be
    read fails the query, unless `keep_bad_records` turns it into a row with its bytes and the cause in place of an
    event. `options` are those of Spark's Kafka source.
    """
    limit = max_events_per_batch if stream else None
    records = kafka_records(
        spark,
        servers,
        topics,
        format=format,
        stream=stream,
        starting_offsets=starting_offsets,
        limit=limit,
        options=options,
    )
    return events_of(records, format, schema, keep_bad_records=keep_bad_records)


def events_of(
    records: DataFrame, format: str, schema: StructType | str | None, *, keep_bad_records: bool = True
) -> DataFrame:
    """Make events of records in the tasks, as `from_kafka` does."""
    wanted = _schema(schema)
    result = StructType([*wanted.fields, *(BAD_RECORD.fields if keep_bad_records else ())])
    return records.mapInArrow(event_reader(format, wanted, keep_bad_records=keep_bad_records), _nullable(result))


def is_records(frame: DataFrame) -> bool:
    """Tell records, as `kafka_records` gives them, from events."""
    return {"topic", "partition", "offset", "value"} <= set(frame.columns)


def kafka_records(
    spark: SparkSession,
    servers: str,
    topics: Sequence[str] | str,
    *,
    format: str,
    stream: bool = True,
    starting_offsets: str = "earliest",
    limit: int | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read topics as they are, without a Python worker; an `event_reader` of their format makes events of the rows.

    Where the value says it all, the rest of a record is left behind: headers are what costs Spark most on the way to
    Python.
    """
    is_value_enough = event_decoder_of(format).is_whole_in_value
    chosen = {
        **kafka_options(servers),
        "includeHeaders": str(not is_value_enough).lower(),
        "startingOffsets": starting_offsets,
        # Records of aborted transactions never happened.
        "kafka.isolation.level": "read_committed",
        **_subscription(topics),
        **({"maxOffsetsPerTrigger": str(limit)} if limit else {}),
        **(options or {}),
    }
    hide_secrets(spark)
    reader = (spark.readStream if stream else spark.read).format("kafka").options(**chosen)
    columns = ["topic", "partition", "offset", "value", *(() if is_value_enough else ("key", "headers"))]
    return without_v1_relation(reader.load()).where("value IS NOT NULL").select(*columns)


def event_reader(format: str, schema: StructType | str, *, keep_bad_records: bool = False) -> Conversion:
    """Give the function that makes rows of events out of rows of records, in tasks or elsewhere."""
    return _converter(event_decoder_of(format), _schema(schema), keep_bad_records=keep_bad_records)


def from_dead_letters(records: DataFrame, format: str, schema: StructType | str) -> DataFrame:
    """Make events of the values of records that could not be read before, which are in the column `bad_record`.

    Only formats that put the whole event into the value can be read like this; the rest of a record is not kept.
    """
    if not event_decoder_of(format).is_whole_in_value:
        raise SettingsError(f"dead letters of the format {format} cannot be read again", hint="Read the topics again.")
    rows = records.selectExpr("'dead-letters' AS topic", "0 AS partition", "0L AS offset", "bad_record AS value")
    result = _nullable(StructType([*_schema(schema).fields, *BAD_RECORD.fields]))
    return rows.mapInArrow(event_reader(format, schema, keep_bad_records=True), result)


def _schema(schema: StructType | str | None) -> StructType:
    if schema is None:
        return ENVELOPE
    if isinstance(schema, StructType):
        return schema
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed


def _nullable(schema: StructType) -> StructType:
    """A row of a bad record has no event; Spark trusts the schema in this."""
    return StructType([StructField(field.name, field.dataType) for field in schema.fields])


def _subscription(topics: Sequence[str] | str) -> dict[str, str]:
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise SettingsError("no topic is named", hint="Give names, or a pattern in slashes.")
    if len(names) == 1 and len(names[0]) > 2 and names[0].startswith("/") and names[0].endswith("/"):
        return {"subscribePattern": names[0][1:-1]}
    return {"subscribe": ",".join(names)}


def _converter(decoder: RecordDecoder, schema: StructType, *, keep_bad_records: bool) -> Conversion:

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = EventColumns(schema)
        with task():
            for batch in batches:
                yield from _converted(batch, decoder, columns, keep_bad_records=keep_bad_records)

    return convert


def _converted(
    batch: pa.RecordBatch, decoder: RecordDecoder, columns: EventColumns, *, keep_bad_records: bool
) -> Iterator[pa.RecordBatch]:
    made, left = columns.none(), list(range(batch.num_rows))
    if decoder.is_event_in_value:
        made, left = columns.unread(batch.column("value"))
    events: list[ReadEvent] = []
    indexes: list[int] = []
    bad: list[tuple[bytes, str]] = []
    for index, record in zip(left, _records(batch.take(pa.array(left, pa.int64()))), strict=True):
        try:
            event = decoder.event(record)
        except Exception as error:
            if not keep_bad_records:
                raise
            bad.append((record.value, str(error)))
            continue
        if event is not None:
            events.append(event)
            indexes.append(index)
    rest = columns.batch([event.bytes for event in events], [event.fields for event in events])
    rows = in_order(made, rest, batch.num_rows, left, indexes) if events else made
    if not keep_bad_records:
        yield rows
        return
    yield _with_bad(rows)
    if bad:
        empty = [pa.nulls(len(bad), kind) for kind in rows.schema.types]
        without_event = pa.RecordBatch.from_arrays(empty, names=rows.schema.names)
        yield _with_bad(without_event, bad)


def _with_bad(rows: pa.RecordBatch, bad: Sequence[tuple[bytes, str]] = ()) -> pa.RecordBatch:
    values, causes = zip(*bad, strict=True) if bad else ([None] * rows.num_rows,) * 2
    arrays = [*rows.columns, pa.array(values, pa.binary()), pa.array(causes, pa.string())]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, *BAD_RECORD.names])


def _records(batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
    columns: list[Iterable[Any]] = [column.to_pylist() for column in batch.columns[:5]]
    if batch.num_columns > len(columns):
        columns.append(_named(batch.column("headers")))
    return map(KafkaRecord, *columns)


def _named(headers: pa.ListArray) -> Iterator[dict[str, bytes]]:
    """Give the headers of each record by name; a dictionary per header, as Arrow makes them, costs more."""
    pairs = headers.flatten()
    names, values = pairs.field("key").to_pylist(), pairs.field("value").to_pylist()
    first = 0
    for count in headers.value_lengths().to_pylist():
        end = first + (count or 0)
        yield dict(zip(names[first:end], values[first:end], strict=True))
        first = end


MANY = 100
"""So many records without one that can be read are no accident."""


def check_format(format: str, bad: int, sample: bytes) -> None:
    """Refuse a batch without a single readable record, when it looks like another format or there are many.

    A few that look right are damaged ones, which are dead letters like any other.
    """
    likely = likely_format(sample)
    if likely in (format, None) and bad < MANY:
        return
    if likely in (format, None):
        seems = "they look like no known format" if likely is None else "they look like it and are damaged"
        raise FormatMismatch(
            f"none of {bad} records can be read as {format}: {seems}",
            hint="Check what writes to these topics, or leave the topic out of --topics; nothing was skipped.",
        )
    is_read = decoder_of(likely).has_events
    raise FormatMismatch(
        f"none of {bad} records can be read as {format}: they look like {likely}",
        hint=f"Run it with --format {likely}; nothing was skipped."
        if is_read
        else f"Jobs do not read {likely}: let the producer write another format; nothing was skipped.",
    )


def likely_format(value: bytes) -> str | None:
    """Tell the format of a record by its value; None when it is none that is known."""
    if len(value) >= 5 and int.from_bytes(value[:4], "little") == len(value) and not value[-1]:
        return "bson"
    if len(value) > 5 and not value[0]:  # a zero, the number of the schema, the data: a schema registry's framing
        return "jsonschema" if _json_object(value[5:]) is not None else "avro"
    form = _json_object(value)
    if form is None:
        return None
    if "specversion" in form:
        return "cloudevents"
    if "operationType" in form and "ns" in form:
        return "canonical" if b'"$numberInt"' in value or b'"$numberLong"' in value else "json"
    if {"op", "ns", "key"} <= form.keys():
        return "flat"
    inner = form.get("payload", form)
    return "debezium" if isinstance(inner, dict) and {"op", "source"} <= inner.keys() else None


def _json_object(value: bytes) -> dict[str, Any] | None:
    try:
        form = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return form if isinstance(form, dict) else None
