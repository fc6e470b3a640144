"""The log of Delta tables, read without Spark; the tables are written by the Python package `deltalake`."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tailrace.cli.app import run
from tailrace.errors import SqlRefused
from tailrace.settings import WarehouseSettings
from tailrace.warehouse import Column, TableKind, read_tables
from tailrace.warehouse.query import ask
from tailrace.warehouse.tables.delta_log import read_log
from tailrace.warehouse.tables.folders import table_names

PROPERTIES = {"tailrace.kind": "mirror", "tailrace.namespace": "shop.orders"}


def orders(*numbers: int) -> pa.Table:
    amounts = {"n": pa.array(numbers, pa.int32()), "inner": [{"tags": ["a"]} for _ in numbers]}
    return pa.table({"_id": [f"k{number}" for number in numbers], **amounts})


def mark_as_ours(commit: Path) -> None:
    """Give a table the properties of a mirror: the package writes none but Delta's own."""
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = PROPERTIES
    commit.write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A mirror of seven rows, of which a checkpoint knows the first five, and a table of somebody else."""
    path = tmp_path / "shop" / "orders"
    write_deltalake(path, orders(1, 2, 3))
    mark_as_ours(path / "_delta_log" / f"{0:020}.json")
    write_deltalake(path, orders(4, 5), mode="append")
    DeltaTable(path).create_checkpoint()
    said = CommitProperties(custom_metadata={"userMetadata": json.dumps({"tailrace.batch": "7", "other": 1})})
    write_deltalake(path, orders(6, 7, 8), mode="append", commit_properties=said)
    DeltaTable(path).delete("n = 8")
    write_deltalake(tmp_path / "shop" / "theirs", orders(1))
    return tmp_path


def answered(query: str, folder: Path, as_of: datetime | None = None) -> list[tuple[Any, ...]]:
    with ask(query, WarehouseSettings(folder=str(folder)), as_of) as answer:
        return list(answer.rows)


def test_a_table_says_what_it_is(folder: Path):
    (table,) = read_tables(folder)
    assert (table.name, table.kind, table.namespace) == ("shop.orders", TableKind.MIRROR, "shop.orders")
    real = DeltaTable(folder / "shop" / "orders")
    assert (table.rows, table.files) == (7, len(real.file_uris()))
    assert table.bytes == sum(Path(uri.removeprefix("file://")).stat().st_size for uri in real.file_uris())
    assert table.columns == [
        Column("_id", "string"), Column("n", "int"), Column("inner", "struct<tags: list<string>>"),
    ]  # fmt: skip
    assert [one.operation for one in table.snapshots] == ["append", "append", "append", "delete"]
    assert table.snapshots[2].properties == {"tailrace.batch": "7"}
    assert table_names(folder) == [("shop", "orders"), ("shop", "theirs")]


def test_it_is_the_same_after_the_commits_before_a_checkpoint_are_gone(folder: Path):
    path = folder / "shop" / "orders"
    before = read_log(path)
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    after = read_log(path)
    assert before is not None
    assert after is not None
    assert (after.rows, after.files, after.properties, after.schema) == (
        before.rows, before.files, before.properties, before.schema,
    )  # fmt: skip
    assert len(after.history) == len(before.history) - 2
    assert read_log(folder / "nothing") is None


def test_sql_reads_it_as_it_is_and_as_it_was(folder: Path):
    assert answered("SELECT count(*), sum(n) FROM shop.orders", folder) == [(7, 28)]
    assert answered("SELECT \"inner\".tags[1] FROM SHOP.Orders WHERE _id = 'k7'", folder) == [("a",)]
    time.sleep(0.01)
    between = datetime.now(UTC)
    time.sleep(0.01)
    write_deltalake(folder / "shop" / "orders", orders(9), mode="append")
    assert answered("SELECT count(*) FROM shop.orders", folder) == [(8,)]
    assert answered("SELECT count(*) FROM shop.orders", folder, between) == [(7,)]
    with pytest.raises(SqlRefused, match="begins at"):
        answered("SELECT 1 FROM shop.orders", folder, datetime(2020, 1, 1, tzinfo=UTC))


def test_a_past_whose_files_are_removed_is_refused(folder: Path):
    between = datetime.now(UTC)
    time.sleep(0.01)
    path = folder / "shop" / "orders"
    write_deltalake(path, orders(1), mode="overwrite")
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert answered("SELECT count(*) FROM shop.orders", folder) == [(1,)]
    with pytest.raises(SqlRefused, match="are removed"):
        answered("SELECT count(*) FROM shop.orders", folder, between)


def test_the_verbs_see_it(folder: Path, capsys: Any):
    assert run(["warehouse", "tables", "--json", "--folder", str(folder)]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["rows"]) == ("shop.orders", 7)
    assert run(["sql", "--json", "--folder", str(folder), "SELECT max(n) AS n FROM shop.orders"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 7}
