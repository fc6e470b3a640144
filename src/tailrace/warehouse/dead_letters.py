"""The dead letters of a warehouse: what could not be read or applied, with its cause, in a table like any other."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tailrace.warehouse.tables.format import Commit, Lake
from tailrace.warehouse.tables.names import DEAD_LETTERS_TABLE, TableKind

COLUMNS: Final = "at timestamp, query string, batch bigint, namespace string, token string, cause string, record binary"


class DeadLetters:
    """Collects the letters of a batch and appends them in one commit."""

    def __init__(self, lake: Lake, commit: Commit) -> None:
        self._lake = lake
        self._commit = commit
        self._frames: list[DataFrame] = []
        self.count = 0

    def add_bad_records(self, events: DataFrame, count: int) -> None:
        """Take the records of a topic that no event could be made of."""
        bad = events.where("cause IS NOT NULL")
        self._add(bad, count, "", F.lit(None).cast("string"), F.col("cause"), F.col("bad_record"))

    def add_staged(self, rows: DataFrame, count: int, namespace: str) -> None:
        """Take the letters among the rows for a mirror."""
        if not count:
            return
        self._add(rows, count, namespace, F.col("_token"), F.col("_rest"), F.col("_bson"))

    def append(self) -> None:
        """Write them, unless the batch did so before."""
        if not self._frames:
            return
        self._lake.create(DEAD_LETTERS_TABLE, TableKind.DEAD_LETTERS, "", COLUMNS)
        all_ = self._frames[0]
        for frame in self._frames[1:]:
            all_ = all_.unionByName(frame)
        new = self._without_known(all_)
        if not new.isEmpty():
            self._lake.append(DEAD_LETTERS_TABLE, new.coalesce(1))

    def _without_known(self, dead_letters: DataFrame) -> DataFrame:
        known = self._lake.table(DEAD_LETTERS_TABLE).where(
            (F.col("query") == self._commit.query) & (F.col("batch") == self._commit.batch)
        )
        locations = "namespace", "token", "cause", "record"
        same = [dead_letters[name].eqNullSafe(known[name]) for name in locations]
        return dead_letters.join(known, same, "left_anti")

    def _add(self, rows: DataFrame, count: int, namespace: str, token: Column, cause: Column, record: Column) -> None:
        self.count += count
        self._frames.append(
            rows.select(
                F.current_timestamp().alias("at"),
                F.lit(self._commit.query).alias("query"),
                F.lit(self._commit.batch).cast("bigint").alias("batch"),
                F.lit(namespace).alias("namespace"),
                token.alias("token"),
                cause.alias("cause"),
                record.alias("record"),
            )
        )
