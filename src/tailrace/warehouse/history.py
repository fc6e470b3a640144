"""The history of a collection: every event once, in the order of days."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.warehouse.summary import Part
from tailrace.warehouse.tables.conflicts import write_once
from tailrace.warehouse.tables.format import Commit, Lake, Name, sql_text
from tailrace.warehouse.tables.names import TableKind, history_table

COLUMNS: Final = (
    "token string, cluster_time timestamp, version bigint, wall_time timestamp, op string, db string, coll string"
    ", _key binary, document_key string, full_document string, full_document_before string"
    ", update_description string, raw binary"
)


def append_history(lake: Lake, events: DataFrame, part: Part, commit: Commit) -> None:
    """Append the events of one collection, unless the batch is there already.

    An event that was delivered twice is kept once, however far apart the deliveries are: its token says where to look,
    and the least and greatest tokens of each file make that a look at few files or none.
    """
    table = history_table(part.namespace)
    lake.create(table, TableKind.HISTORY, part.namespace, COLUMNS, day="cluster_time")
    rows = events.where(part.condition()).select(
        "token",
        F.timestamp_seconds(F.shiftright("cluster_time", 32)).alias("cluster_time"),
        F.col("cluster_time").alias("version"),
        *("wall_time", "op", "db", "coll", "_key", "document_key", "full_document", "full_document_before"),
        *("update_description", "raw"),
    )
    if part.repeated:
        rows = rows.dropDuplicates(["token", "_key"])
    write_once(lambda: _append(lake, table, rows, part), lambda: lake.has_batch(table, commit))


def _append(lake: Lake, table: Name, rows: DataFrame, part: Part) -> None:
    """Append the events that the history has not; what another job appends meanwhile is a conflict."""
    since = lake.version(table)
    if lake.has_rows_between(table, "token", part.least_token, part.greatest_token):
        rows = _without_known(lake.table(table), rows, part)
        if rows.isEmpty():
            lake.append(table, rows)  # says that the batch is done
            return
    inside = f"t.token >= {sql_text(part.least_token)} AND t.token <= {sql_text(part.greatest_token)}"
    lake.append_unknown(table, rows, f"t.token = s.token AND t._key <=> s._key AND {inside}", since)


def _without_known(known: DataFrame, rows: DataFrame, part: Part) -> DataFrame:
    inside = known.where(F.col("token").between(part.least_token, part.greatest_token)).select(
        F.col("token").alias("known_token"), F.col("_key").alias("known_key")
    )
    same = (F.col("token") == F.col("known_token")) & F.col("_key").eqNullSafe(F.col("known_key"))
    return rows.join(inside, same, "left_anti")
