"""Dead letters of the Spark jobs, from files in the form that the jobs write (tests/spark writes them with Spark)."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from tailrace.dashboard.sources.job_dead_letters import NEWEST, FeatureDeadLetters, WarehouseDeadLetters

_COLUMNS = ("at", "query", "batch", "namespace", "token", "cause", "record")


def write(path: Path, rows: list[dict[str, Any]], at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)
    os.utime(path, (at, at))


def bad_record(text: str) -> dict[str, Any]:
    return {"bad_record": text.encode(), "cause": f"record t/0@1 is not of the format bson: {text}"}


def row(seconds: int, cause: str, batch: int = 1) -> dict[str, Any]:
    at = datetime.fromtimestamp(seconds, UTC)
    return dict(zip(_COLUMNS, (at, "query", batch, "shop.orders", "8265", cause, b"12345"), strict=True))


def test_letters_of_features_are_counted_and_the_newest_come_first(tmp_path: Path) -> None:
    letters = FeatureDeadLetters(str(tmp_path))
    assert (letters.poll().total, letters.poll().newest) == (0, [])
    write(tmp_path / "fraud" / "batch=3" / "part-0.parquet", [bad_record("old")] * NEWEST, 1_000)
    write(tmp_path / "fraud" / "batch=7" / "part-0.parquet", [bad_record("new")], 2_000)
    write(tmp_path / "fraud" / "batch=8" / "_temporary" / "part-0.parquet", [bad_record("unfinished")], 3_000)
    found = letters.poll()
    assert (found.part, found.location, found.total) == ("features", str(tmp_path), NEWEST + 1)
    newest = found.newest[0]
    assert (newest.at, newest.cause, newest.bytes) == (2_000, "event-unconvertible", 3)
    assert newest.message == "record t/0@1 is not of the format bson: new (features fraud, batch 7)"


def test_letters_of_a_batch_that_was_repeated_are_read_again(tmp_path: Path) -> None:
    letters, file = FeatureDeadLetters(str(tmp_path)), tmp_path / "fraud" / "batch=1" / "part-0.parquet"
    write(file, [bad_record("first")], 1_000)
    assert letters.poll().total == 1
    write(file, [bad_record("first"), bad_record("second")], 1_001)
    assert letters.poll().total == 2


def test_letters_of_tables_are_given_once_however_often_a_file_has_them(tmp_path: Path) -> None:
    data = tmp_path / "tailrace" / "dead_letters" / "data"
    drift, missing = row(10, "schema-drift: city (array)"), row(20, "base-unknown", batch=2)
    write(data / "a.parquet", [drift], 10)
    write(data / "b.parquet", [missing], 20)
    write(data / "compacted.parquet", [drift, missing], 30)
    found = WarehouseDeadLetters(str(tmp_path), lambda: 2).poll()
    assert (found.part, found.location, found.total) == ("warehouse", "table tailrace.dead_letters", 2)
    assert [(one.at, one.cause, one.message) for one in found.newest] == [
        (20, "base-unknown", "(batch 2)"),
        (10, "schema-drift", "city (array) (batch 1)"),
    ]


def test_files_that_no_snapshot_has_are_no_letters(tmp_path: Path) -> None:
    write(tmp_path / "tailrace" / "dead_letters" / "data" / "a.parquet", [row(1, "base-unknown")], 1)
    assert WarehouseDeadLetters(str(tmp_path), lambda: 0).poll().newest == []


def test_a_place_beyond_this_machine_is_not_looked_at() -> None:
    assert FeatureDeadLetters("s3a://bucket/letters").poll().total is None
    assert WarehouseDeadLetters("s3a://bucket/lake", lambda: None).poll().total is None
