"""Delta Lake beside Iceberg: what is its own. All that both do is in `test_job` and `test_ends`."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson.timestamp import Timestamp
from pyspark.sql.types import StructType

from tailrace.capture.formats.made_events import snapshot_event
from tailrace.errors import SettingsError, SqlRefused
from tailrace.settings import Settings, WarehouseSettings
from tailrace.spark.columns import EventColumns
from tailrace.token import ResumeToken
from tailrace.warehouse import read_tables
from tailrace.warehouse.job import COLUMNS, WarehouseJob
from tailrace.warehouse.lake import configure_catalog, open_lake
from tailrace.warehouse.query import ask
from tailrace.warehouse.tables.format import Commit
from warehouse_load import mirrored

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def events(spark: Any, namespace: str, documents: list[dict[str, Any]], second: int) -> Any:
    at = Timestamp(second, 1)
    token = ResumeToken.high_water_mark(at).to_bson()
    made = [snapshot_event(namespace, bson.encode(document), token, at) for document in documents]
    return spark.createDataFrame(pa.Table.from_batches([EventColumns(StructType.fromDDL(COLUMNS)).batch(made)]))


def answered(query: str, settings: WarehouseSettings, as_of: datetime | None = None) -> list[tuple[Any, ...]]:
    with ask(query, settings, as_of) as answer:
        return list(answer.rows)


def test_batches_into_delta_tables_and_sql_over_them_without_spark(spark, tmp_path: Path):
    """Two batches, the second of them again; deletion vectors, a wider column and the past, as others read it."""
    chosen = WarehouseSettings(folder=str(tmp_path), format="delta", maintain_batches=0)
    configure_catalog(spark, chosen)
    first = [{"_id": number, "n": number, "at": datetime(1600, 1, 1, tzinfo=UTC)} for number in range(20)]
    WarehouseJob(chosen).write(events(spark, "d.c", first, 1), Commit("q", 0))
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    second = [{"_id": 3, "n": 1.5, "a b": 1}, {"_id": 99, "n": 7}]
    for _ in range(2):
        WarehouseJob(chosen).write(events(spark, "d.c", second, 2), Commit("q", 1))
    lake = open_lake(spark, chosen)
    current = {**{one["_id"]: one for one in first}, **{one["_id"]: one for one in second}}
    assert mirrored(lake.table(("d", "c"))) == {repr(key): bson.encode(one) for key, one in current.items()}
    assert lake.has_batch(("d", "c"), Commit("q", 1))
    assert not lake.has_batch(("d", "c"), Commit("q", 2))
    assert not lake.has_batch(("d", "c"), Commit("another", 0))

    states = {state.name: state for state in read_tables(chosen.folder)}
    assert [states[name].rows for name in ("d.c", "d.c_history")] == [21, 22]
    assert list(lake.states()) == list(states.values()), "Spark and the log as it is read without it say the same"
    assert states["d.c"].snapshots[-1].properties["tailrace.batch"] == "1"
    assert [one.properties["tailrace.batch"] for one in states["d.c_history"].snapshots] == ["0", "1"]

    assert answered('SELECT count(*), sum(n), min("at") FROM d.c', chosen) == [
        (21, sum(range(20)) - 3 + 1.5 + 7, datetime(1600, 1, 1, tzinfo=UTC))
    ]
    assert answered("SELECT _rest FROM d.c WHERE _id = 3", chosen) == [('{"a b":1}',)]
    assert answered("SELECT count(*), max(n) FROM d.c", chosen, between) == [(20, 19)]
    with pytest.raises(SqlRefused, match="begins at"):
        answered("SELECT count(*) FROM d.c", chosen, datetime(2020, 1, 1, tzinfo=UTC))


def test_a_table_whose_creation_was_cut_off_is_made(spark, tmp_path: Path):
    """What a driver leaves that is killed in CREATE TABLE: a log without a commit."""
    for name in ("c", "c_history"):
        (tmp_path / "d" / name / "_delta_log" / "_staged_commits").mkdir(parents=True)
    (tmp_path / "d" / "c" / "_delta_log" / ".00000000000000000000.json.5f0c.tmp").write_text('{"commitInfo"')
    chosen = WarehouseSettings(folder=str(tmp_path), format="delta", maintain_batches=0)
    assert read_tables(chosen.folder) == []
    configure_catalog(spark, chosen)
    WarehouseJob(chosen).write(events(spark, "d.c", [{"_id": 1}], 1), Commit("q", 0))
    assert mirrored(open_lake(spark, chosen).table(("d", "c"))) == {repr(1): bson.encode({"_id": 1})}


def test_the_formats_do_not_write_into_each_others_tables(spark, tmp_path: Path):
    def made(format: str, folder: str) -> WarehouseSettings:
        return WarehouseSettings(folder=str(tmp_path / folder), catalog=f"lake_{uuid.uuid4().hex[:8]}", format=format)

    (tmp_path / "d" / "theirs" / "c" / "_delta_log").mkdir(parents=True)
    (tmp_path / "i" / "theirs" / "c" / "metadata").mkdir(parents=True)
    (tmp_path / "i" / "theirs" / "c" / "metadata" / "v1.metadata.json").write_text("{}")
    (tmp_path / "d" / "theirs" / "c" / "_delta_log" / f"{0:020}.json").write_text("{}")
    for format, folder, other in (("iceberg", "d", "delta"), ("delta", "i", "iceberg")):
        chosen = made(format, folder)
        with pytest.raises(SettingsError, match=f"tables in the format {other}, such as theirs.c"):
            WarehouseJob(chosen).write(events(spark, "new.c", [{"_id": 1}], 1), Commit("q", 0))
        assert [path.name for path in (tmp_path / folder).iterdir()] == ["theirs"], "nothing was written"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"format": "hudi"}, "iceberg, delta"),
        ({"format": "delta", "catalog_config": {"type": "rest"}}, "catalog_config is for format iceberg"),
        ({"format": "delta", "format_version": 2}, "format_version is for format iceberg"),
    ],
)
def test_settings_that_delta_does_not_have(wrong: dict[str, Any], words: str, tmp_path: Path):
    with pytest.raises(SettingsError, match=words):
        Settings.load(None, {f"warehouse.{key}": value for key, value in wrong.items()})
