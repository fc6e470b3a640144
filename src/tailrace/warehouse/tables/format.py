"""What the job asks of a table format: the one seam between what happens to tables and how a format does it.

`iceberg` and `delta` implement it; `lake.open_lake` chooses. All of it is seen by one Spark session.
"""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession

from tailrace.errors import SettingsError
from tailrace.spark.checkpoint import Recorded
from tailrace.spark.jvm import jvm_of
from tailrace.warehouse.tables.driver_table import DriverTable
from tailrace.warehouse.tables.names import TableKind
from tailrace.warehouse.tables.states import Snapshot, TableState

Name = tuple[str, str]
"""Database and table."""
BACKFILL: Final = "backfill "
"""With a time behind it, the name of the query of a backfill."""
_START_OPTIONS: Final = ("startAfter", "startAtOperationTime")
_QUERY: Final = "tailrace.query"


@dataclass(frozen=True, slots=True)
class Commit:
    """What a snapshot says about the batch that made it."""

    query: str
    """The query's own id, which lives in its checkpoint."""
    batch: int
    start: str = ""
    end: str = ""
    token: str = ""
    """The newest event of the batch, so that readers can tell how fresh a table is."""

    def properties(self, *, is_whole: bool = True) -> dict[str, str]:
        """Give the properties of the snapshot; one of a part of the batch says so."""
        return {
            "tailrace.query": self.query,
            "tailrace.batch" if is_whole else "tailrace.part-of-batch": str(self.batch),
            "tailrace.token": self.token,
            "tailrace.offsets.start": self.start,
            "tailrace.offsets.end": self.end,
        }


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    files_before: int
    files_after: int
    bytes: int


class Lake(ABC):
    """The tables of one warehouse."""

    type_promotions: ClassVar[frozenset[tuple[str, str]]]
    """The widenings of a column that need no new files."""
    column_name: ClassVar[re.Pattern[str]]
    """What a column may be called; a field of another name stays in `_rest`."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._known: set[Name] = set()
        self._jvm: Any = jvm_of(spark)
        if self._jvm is None:
            hint = "Give spark.master = local[*] or a cluster, or use spark-submit; Connect may read the tables."
            raise SettingsError("tables cannot be written through Spark Connect", hint=hint)

    @abstractmethod
    def sql_name(self, table: Name) -> str:
        """Give the name for SQL."""

    @abstractmethod
    def has_table(self, table: Name) -> bool:
        """Look whether there is such a table."""

    @abstractmethod
    def create(
        self,
        table: Name,
        kind: TableKind,
        namespace: str,
        columns: str,
        *,
        day: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make a table unless it is there.

        `day` is a column of times by whose days the rows are kept apart, `properties` are the job's own.
        """

    @abstractmethod
    def purge(self, table: Name) -> None:
        """Remove a table with its files."""

    @abstractmethod
    def properties(self, table: Name) -> dict[str, str]:
        """Give the properties of a table."""

    @abstractmethod
    def set_properties(self, table: Name, properties: Mapping[str, str]) -> None:
        """Set some of them, in one commit."""

    @abstractmethod
    def replace(self, table: Name, rows: DataFrame, properties: Mapping[str, str]) -> None:
        """Put other rows and columns in the place of those of a table, in one commit; its other properties stay."""

    @abstractmethod
    def location(self, table: Name) -> str:
        """Give where the files of a table are."""

    @abstractmethod
    def version(self, table: Name) -> int | None:
        """Give the number of the newest snapshot, by which a change is noticed; None when there is none."""

    @abstractmethod
    def rows(self, table: Name) -> int:
        """Give about how many rows there are, by metadata alone."""

    @abstractmethod
    def commit_as(self, commit: Commit, *, is_whole: bool = True) -> None:
        """Let the snapshots that this session makes from now on say which batch they are of.

        Snapshots of a part of a batch say so: a batch that was cut off in between counts as not done.
        """

    @abstractmethod
    def has_batch(self, table: Name, commit: Commit) -> bool:
        """Tell whether a batch, or a later one of the same query, is in the table already."""

    @abstractmethod
    def has_rows_between(self, table: Name, column: str, least: str, greatest: str) -> bool:
        """Tell whether a file may hold values in a range; only metadata is read."""

    @abstractmethod
    def states(self) -> Iterator[TableState]:
        """Give what every table of ours says about itself."""

    @abstractmethod
    def compact(self, table: Name, kind: TableKind) -> Compacted:
        """Put small files together; a mirror's rows are sorted by key where that lets a batch touch fewer files."""

    @abstractmethod
    def expire(self, table: Name, keep_hours: float) -> int:
        """Remove snapshots older than this, and the files only they need; gives the number of files."""

    @abstractmethod
    def remove_orphans(self, table: Name, older_than_hours: float = 72) -> int:
        """Remove files that no snapshot knows: what killed jobs had written and not committed."""

    def table(self, table: Name) -> DataFrame:
        """Give the rows."""
        return self.spark.table(self.sql_name(table))

    def exists(self, table: Name) -> bool:
        """Tell whether there is such a table; one that was seen is not looked for again."""
        if table not in self._known and self.has_table(table):
            self._known.add(table)
        return table in self._known

    def driver_table(self, table: Name) -> DriverTable | None:
        """Give a table for the driver to write small batches to; None where only Spark can write it."""
        return None

    @abstractmethod
    def use_names(self) -> None:
        """Let the session's SQL find tables as `database.table`."""

    @contextmanager
    def view(self, rows: DataFrame) -> Iterator[str]:
        """Give rows a name for SQL; several collections are written at once, so nobody else has it."""
        name = f"tailrace_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self.spark.catalog.dropTempView(name)

    def append(self, table: Name, rows: DataFrame) -> None:
        """Add rows, in one commit."""
        rows.writeTo(self.sql_name(table)).append()

    @abstractmethod
    def append_unknown(self, table: Name, rows: DataFrame, same: str, since: int | None) -> None:
        """Add rows of which a table had none in the version `since`, in one commit.

        Raises Conflict when somebody else has added rows meanwhile. `same` tells in SQL when a row of the table, `t`,
        is one of these, `s`.
        """

    def drop(self, table: Name) -> None:
        """Remove a table with its files, if there is one."""
        self._known.discard(table)
        self.purge(table)


def absolute_folder(folder: str) -> str:
    """Give a folder as every process understands it."""
    return folder if "://" in folder else str(Path(folder).absolute())


def sql_text(text: str) -> str:
    """Give a string as SQL has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def listed_properties(properties: Mapping[str, str]) -> str:
    """Give properties as SQL lists them."""
    return ", ".join(f"{sql_text(key)} = {sql_text(value)}" for key, value in properties.items())


def recorded_start(states: Iterable[TableState]) -> Recorded | None:
    """Say where the newest batch in these tables begins; None when no job has written them.

    That batch may be in some tables only, so it is the one to begin with again.
    """
    ours = ((one, state) for state in states for one in state.snapshots if _QUERY in one.properties)
    newest = max(ours, key=lambda found: found[0].at, default=None)
    if newest is None:
        return None
    snapshot, state = newest
    return Recorded(f"the table {state.name}", f"{snapshot.at:%Y-%m-%d %H:%M:%S} UTC", _options_of(snapshot))


def _options_of(snapshot: Snapshot) -> Mapping[str, str] | None:
    """Give the options that begin with the batch of a snapshot; None where it does not tell."""
    if snapshot.properties[_QUERY].startswith(BACKFILL):
        return None  # a load that was cut off has filled some tables only, and nothing tells it from a whole one
    begins = json.loads(snapshot.properties.get("tailrace.offsets.start") or "{}")
    if isinstance(begins.get("token"), str):
        return {"startAfter": begins["token"]}
    return {name: begins[name] for name in _START_OPTIONS if name in begins} or None
