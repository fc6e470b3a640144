"""Build mirrors anew from what topics retain, beside the old ones, and put them in their place.

The new rows replace the old ones in one commit of the old table: readers see one or the other, the past stays
readable, and no catalog has to be able to rename. A job that goes on afterwards repeats events that are in the new rows
already, and newest wins.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame

from tailrace.capture.source.namespaces import Namespaces
from tailrace.errors import QueryFailed, RebuildIncomplete, SettingsError, TableChanged
from tailrace.settings import WarehouseSettings
from tailrace.spark.failures import error_of
from tailrace.spark.supervising import stop
from tailrace.warehouse.job import WarehouseJob
from tailrace.warehouse.lake import configure_catalog, open_lake
from tailrace.warehouse.mirror.mirrors import Mirrors
from tailrace.warehouse.tables.format import Lake
from tailrace.warehouse.tables.names import DEAD_LETTERS_TABLE, mirror_table

SUFFIX: Final = "_rebuilt"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of a mirror."""

    namespace: str
    rows_before: int
    rows_after: int


def starting_options(start: str) -> dict[str, str]:
    """Give the options of Spark's Kafka source for where to begin."""
    if start == "earliest":
        return {"startingOffsets": "earliest"}
    try:
        moment = datetime.fromisoformat(start)
    except ValueError:
        raise SettingsError(
            f"{start!r} is not a time", hint="Write earliest, or a time such as 2024-05-01T00:00Z."
        ) from None
    at = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return {"startingTimestamp": str(int(at.timestamp() * 1000)), "startingOffsetsByTimestampStrategy": "latest"}


def rebuild_mirrors(
    events: DataFrame, settings: WarehouseSettings, namespaces: Sequence[str], *, force: bool = False
) -> Iterator[Rebuilt]:
    """Read the stream to its end into new mirrors, then swap each; histories get the events they lack."""
    spark = events.sparkSession
    configure_catalog(spark, settings)
    lake = open_lake(spark, settings)
    beside = Mirrors(lake, settings, SUFFIX)
    for namespace in namespaces:
        beside.drop(namespace)
    before = {namespace: _version(lake, namespace) for namespace in namespaces}
    with tempfile.TemporaryDirectory(prefix="tailrace-rebuild-") as checkpoint:
        job = WarehouseJob(settings, Namespaces.parse(namespaces), mirror_suffix=SUFFIX)
        query = job.start(events, checkpoint, availableNow=True)
        try:
            query.awaitTermination()
        except Exception as failure:
            raise error_of(failure) or QueryFailed(f"the rebuild failed: {failure}") from failure
        finally:
            stop(query)
        dead_letters = _dead_letters(lake, str(query.id))
    if dead_letters and not force:
        raise RebuildIncomplete(
            f"{dead_letters} events of the topics could not be applied; the mirrors are as they were"
        )
    for namespace in namespaces:
        if _version(lake, namespace) != before[namespace]:
            raise TableChanged(f"the mirror of {namespace} was written to while it was rebuilt")
        yield _swap(lake, beside, Mirrors(lake, settings), namespace)


def _swap(lake: Lake, beside: Mirrors, real: Mirrors, namespace: str) -> Rebuilt:
    old = real.get(namespace)
    rows_before = lake.table(old.table).count()
    new = beside.get(namespace)
    old.replace_by(new)
    rows_after = lake.table(old.table).count()
    beside.drop(namespace)
    return Rebuilt(namespace, rows_before, rows_after)


def _version(lake: Lake, namespace: str) -> int | None:
    table = mirror_table(namespace)
    return lake.version(table) if lake.exists(table) else None


def _dead_letters(lake: Lake, query: str) -> int:
    if not lake.exists(DEAD_LETTERS_TABLE):
        return 0
    return lake.table(DEAD_LETTERS_TABLE).where(f"query = '{query}' AND namespace != ''").count()
