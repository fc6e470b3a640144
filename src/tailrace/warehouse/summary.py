"""What is in a micro-batch, before anything is written: one look at its rows, collection by collection."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from tailrace.capture.source.namespaces import Namespaces
from tailrace.event import ChangeEvent
from tailrace.fold import DATA_OPERATIONS, END_OPERATIONS, End, Ends, end_of

IS_DELTA = "op = 'update' AND full_document IS NULL"
"""What holds for updates that bring no document."""


@dataclass(frozen=True, slots=True)
class Part:
    """The events of one collection; those of a database alone have no collection."""

    database: str
    collection: str | None
    events: int
    changes: int
    """Events of documents."""
    deltas: int
    """Updates that bring no document."""
    size: int
    """In bytes."""
    least_token: str
    greatest_token: str
    least_key: bytes | None
    greatest_key: bytes | None
    least_time: int
    """The first cluster time."""
    repeated: bool
    """Whether an event may be in the batch twice."""

    @property
    def namespace(self) -> str:
        """`db.collection`."""
        return f"{self.database}.{self.collection or ''}"

    def joined(self, other: Part) -> Part:
        """Give what is known of the events of both, for those who take them together."""
        keys = [key for part in (self, other) for key in (part.least_key, part.greatest_key) if key is not None]
        return replace(
            self,
            events=self.events + other.events,
            changes=self.changes + other.changes,
            deltas=self.deltas + other.deltas,
            size=self.size + other.size,
            least_key=min(keys, default=None),
            greatest_key=max(keys, default=None),
        )

    def condition(self) -> Column:
        """What holds for the rows of this part."""
        return (F.col("db") == self.database) & F.col("coll").eqNullSafe(F.lit(self.collection))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a batch holds."""

    parts: tuple[Part, ...]
    ends: tuple[End, ...]
    """What ended collections, in order."""
    bad: int
    """Records that cannot be read."""
    events: int = 0
    """Events of all collections, chosen or not."""

    @property
    def newest(self) -> str:
        """The token of the newest event; empty when there is none."""
        return max((part.greatest_token or "" for part in self.parts), default="")


def summarise(events: DataFrame, selection: Namespaces) -> Summary:
    """Look at a batch.

    Spark sorts all rows to find the least of texts, unless something is collected beside it; here it is the operations.
    Sorted or not, counting what is distinct along with it would do that for every event, so it is a look of its own.
    """
    rows = (
        events.groupBy("db", "coll")
        .agg(
            F.collect_set("op").alias("operations"),
            F.count("token").alias("events"),
            F.count_if(F.col("op").isin(*DATA_OPERATIONS)).alias("changes"),
            F.count_if(F.expr(IS_DELTA)).alias("deltas"),
            F.count_if(F.col("token").isNull()).alias("bad"),
            F.sum(F.length("raw")).alias("bytes"),
            F.min("token").alias("least"),
            F.max("token").alias("greatest"),
            F.min("_key").alias("least_key"),
            F.max("_key").alias("greatest_key"),
            F.min("cluster_time").alias("least_time"),
        )
        .collect()
    )
    repeated = _repeated(events)
    parts = tuple(
        _part(row, (row.db, row.coll) in repeated)
        for row in rows
        if row.db is not None and selection.contains_event(_name(row))
    )
    ends: tuple[End, ...] = ()
    if any(operation in END_OPERATIONS for row in rows for operation in row.operations):
        found = events.where(F.col("op").isin(*END_OPERATIONS)).select("raw").distinct().collect()
        ends = tuple(Ends(end_of(ChangeEvent(bytes(row.raw))) for row in found))
    return Summary(parts, ends, sum(row.bad for row in rows), sum(row.events for row in rows))


def summarise_rows(events: pa.Table, selection: Namespaces) -> Summary:
    """Look at a batch that is in the driver; bad records have no token."""
    by_name: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    columns = {name: events[name].to_pylist() for name in ("db", "coll", "op", "token", "_key", "cluster_time")}
    for number, name in enumerate(zip(columns["db"], columns["coll"], strict=True)):
        by_name[name].append(number)
    ended = [number for number, operation in enumerate(columns["op"]) if operation in END_OPERATIONS]
    bad = columns["token"].count(None)
    parts = []
    for (database, collection), numbers in by_name.items():
        if database is None or not selection.contains_event(_full_name(database, collection)):
            continue
        chosen = {name: [values[number] for number in numbers] for name, values in columns.items()}
        rows = events.take(pa.array(numbers))
        has_no_document = rows["full_document"].is_null().to_pylist()
        keys = [key for key in chosen["_key"] if key is not None]
        pairs = set(zip(chosen["token"], chosen["_key"], strict=True))
        parts.append(
            Part(
                database=database,
                collection=collection,
                events=len(numbers),
                changes=sum(operation in DATA_OPERATIONS for operation in chosen["op"]),
                deltas=sum(
                    operation == "update" and is_missing
                    for operation, is_missing in zip(chosen["op"], has_no_document, strict=True)
                ),
                size=pc.sum(pc.binary_length(rows["raw"])).as_py() or 0,
                least_token=min(chosen["token"]),
                greatest_token=max(chosen["token"]),
                least_key=min(keys, default=None),
                greatest_key=max(keys, default=None),
                least_time=min(chosen["cluster_time"]),
                repeated=len(pairs) < len(numbers),
            )
        )
    ends = tuple(Ends(end_of(ChangeEvent(raw)) for raw in events["raw"].take(pa.array(ended, pa.int64())).to_pylist()))
    return Summary(tuple(parts), ends, bad, events.num_rows - bad)


def _repeated(events: DataFrame) -> set[tuple[str, str | None]]:
    """Give the collections that may have an event twice in the batch.

    Numbers are counted at a fraction of the cost of texts; two events that share one are looked at again.
    """
    number = F.xxhash64("token", F.coalesce("_key", F.lit(b""))).alias("number")
    counted = events.where("token IS NOT NULL").select("db", "coll", number).groupBy("db", "coll", "number").count()
    return {(row.db, row.coll) for row in counted.where("count > 1").select("db", "coll").distinct().collect()}


def _part(row: Row, repeated: bool) -> Part:
    return Part(
        database=row.db,
        collection=row.coll,
        events=row.events,
        changes=row.changes,
        deltas=row.deltas,
        size=row.bytes,
        least_token=row.least,
        greatest_token=row.greatest,
        least_key=row.least_key,
        greatest_key=row.greatest_key,
        least_time=row.least_time or 0,
        repeated=repeated,
    )


def _name(row: Row) -> str:
    return _full_name(row.db, row.coll)


def _full_name(database: str, collection: str | None) -> str:
    return database if collection is None else f"{database}.{collection}"
