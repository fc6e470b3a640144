"""Drops, renames and `$out` on their way into mirrors: whatever order the records come in, on real servers."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_queries import started
from tailrace.capture.source.namespaces import EVERYTHING, Namespaces
from tailrace.settings import WarehouseSettings
from tailrace.spark.columns import EventColumns
from tailrace.warehouse import TableKind, read_tables
from tailrace.warehouse.job import COLUMNS, WarehouseJob
from tailrace.warehouse.lake import configure_catalog, open_lake
from tailrace.warehouse.tables.format import Commit
from warehouse_load import differences, mirrored, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.fixture(params=["iceberg", pytest.param("delta", marks=pytest.mark.long)])
def settings(request, spark, tmp_path):
    """The settings of a new warehouse in a folder of its own: every test holds for each of the formats."""
    name = f"lake_{uuid.uuid4().hex[:8]}"
    made = WarehouseSettings(folder=str(tmp_path / name), catalog=name, maintain_batches=0, format=request.param)
    configure_catalog(spark, made)
    return made


def rows_of(spark: Any, chosen: WarehouseSettings, database: Any, name: str) -> Any:
    return open_lake(spark, chosen).table((database.name, name))


def frame(spark: Any, events: list[bytes]) -> Any:
    schema = StructType.fromDDL(COLUMNS)
    return spark.createDataFrame(pa.Table.from_batches([EventColumns(schema).batch(events)]))


def told(database: Any, start: bson.Timestamp) -> list[bytes]:
    """Give the events of a database since a time, as the server tells them."""
    with database.watch(start_at_operation_time=start, max_await_time_ms=300) as stream:
        return [bson.encode(event) for event in iter(stream.try_next, None)]


def kind_of(event: bytes) -> str:
    return bson.decode(event)["operationType"]


def mirrors(chosen: WarehouseSettings) -> set[str]:
    return {table.namespace for table in read_tables(chosen.folder) if table.kind == TableKind.MIRROR}


def test_records_that_come_batches_after_the_end_of_their_collection(spark, database, settings):
    """As they do when the end is in another partition: the ends before nearly all else, one batch after the other.

    Of each collection one document is there before: it leaves with the end, or moves to the new name. Each batch by a
    process of its own, and then that of the ends again, as after a crash.
    """
    start = now(database.client)
    database.gone.insert_many([{"_id": key} for key in range(3)])
    database.gone.drop()
    database.gone.insert_one({"_id": 2, "life": 2})
    database.old.insert_many([{"_id": key, "v": 0} for key in range(3)])
    database.old.rename("new")
    database.new.update_one({"_id": 1}, {"$set": {"v": 1}})
    database.old.insert_one({"_id": 0, "life": 2})
    database.new.delete_one({"_id": 2})
    database.target.insert_many([{"_id": key, "v": "gone"} for key in range(5)])
    database.source.insert_many([{"_id": key, "v": "moved"} for key in range(3)])
    database.source.rename("target", dropTarget=True)
    events = told(database, start)
    ends = [event for event in events if kind_of(event) in ("drop", "rename")]
    others = [event for event in events if kind_of(event) not in ("drop", "rename")]
    early = [
        event for event in others if kind_of(event) == "insert" and bson.decode(event)["documentKey"] == {"_id": 1}
    ]
    late = [event for event in others if event not in early]
    assert (len(ends), len(early)) == (3, 4)
    for number, batch in enumerate([early, ends, late[:6], late[6:], ends]):
        WarehouseJob(settings).write(frame(spark, batch), Commit("q", number))
    for name in ("gone", "old", "new", "target", "source"):
        if f"{database.name}.{name}" in mirrors(settings):
            assert differences(rows_of(spark, settings, database, name), database[name]) == [], name
        else:
            assert name == "source"


def test_out_renames_from_elsewhere_and_to_elsewhere(spark, mongodb, database, settings, tmp_path: Path):
    """`$out` and renames over chosen collections that are read directly; a rename away leaves nothing behind."""
    chosen = [f"{database.name}.{name}" for name in ("target", "other", "left")]
    database.seed.insert_many([{"_id": key, "v": "out"} for key in range(4)])
    database.target.insert_many([{"_id": key, "v": "old"} for key in range(2, 8)])
    database.left.insert_one({"_id": 1})
    job = WarehouseJob(settings, Namespaces.parse(chosen), uri=mongodb.uri)
    start = job.backfill(spark, mongodb.uri, chosen)
    database.seed.aggregate([{"$out": "target"}])
    database.seed.rename("other")
    database.left.rename("elsewhere")
    options = {"uri": mongodb.uri, "namespaces": ",".join(chosen), "startAtOperationTime": start}
    events = spark.readStream.format("tailrace").options(**options).schema(COLUMNS).load()

    def run() -> None:
        query = started(lambda: job.start(events, str(tmp_path / "c"), availableNow=True))
        try:
            assert query.awaitTermination(600)
        finally:
            query.stop()

    run()
    for name in ("target", "other", "left"):
        assert differences(rows_of(spark, settings, database, name), database[name]) == []
    # What nobody follows comes back under another name, without the document that was deleted meanwhile.
    database.elsewhere.insert_many([{"_id": 2}, {"_id": 3}])
    database.elsewhere.delete_one({"_id": 1})
    database.elsewhere.rename("left")
    database.target.delete_one({"_id": 1})
    run()
    for name in ("target", "other", "left"):
        assert differences(rows_of(spark, settings, database, name), database[name]) == []
    assert mirrors(settings) == set(chosen)


def test_out_in_a_chosen_database_leaves_no_mirror_of_the_temporary_collection(spark, mongodb, database, settings):
    start = now(database.client)
    database.seed.insert_many([{"_id": key} for key in range(4)])
    database.seed.aggregate([{"$out": "target"}])
    job = WarehouseJob(settings, EVERYTHING, uri=mongodb.uri)
    events = told(database, start)
    # The seed in one batch, and what `$out` does one event at a time.
    for number, batch in enumerate([events[:4], *([event] for event in events[4:])]):
        job.write(frame(spark, batch), Commit("q", number))
    assert mirrors(settings) == {f"{database.name}.seed", f"{database.name}.target"}
    assert len(mirrored(rows_of(spark, settings, database, "target"))) == 4
