"""What a folder of tables says about itself; that real tables are read right is in tests/warehouse/test_job.py."""

from __future__ import annotations

import gzip
import json

from tailrace.warehouse import Column, Drift, TableKind, read_tables
from tailrace.warehouse.columns.evolution import add_drift, read_drift, write_drift


def metadata(**changes) -> bytes:
    summary = {
        "operation": "overwrite",
        "added-records": "3",
        "added-position-deletes": "1",
        "total-records": "5",
        "total-position-deletes": "1",
        "total-data-files": "2",
        "total-delete-files": "1",
        "total-files-size": "900",
        "tailrace.batch": "7",
        "spark.app.id": "x",
    }
    kinds = [
        {"name": "_id", "type": "string"},
        {
            "name": "tags",
            "type": {
                "type": "list",
                "element": {"type": "struct", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "long"}]},
            },
        },
    ]
    form = {
        "properties": {"tailrace.kind": "mirror", "tailrace.namespace": "shop.orders"},
        "current-snapshot-id": 2,
        "snapshots": [{"snapshot-id": 2, "timestamp-ms": 1_700_000_000_000, "summary": summary}],
        "current-schema-id": 1,
        "schemas": [{"schema-id": 0, "fields": []}, {"schema-id": 1, "fields": kinds}],
    }
    return json.dumps({**form, **changes}).encode()


def test_the_newest_metadata_counts(tmp_path):
    folder = tmp_path / "shop" / "orders" / "metadata"
    folder.mkdir(parents=True)
    (folder / "v9.metadata.json").write_bytes(b"an older one is not even read")
    (folder / "v10.gz.metadata.json").write_bytes(gzip.compress(metadata()))
    (folder / "version-hint.text").write_text("9")
    (table,) = read_tables(tmp_path)
    assert (table.name, table.kind, table.namespace) == ("shop.orders", TableKind.MIRROR, "shop.orders")
    assert (table.rows, table.files, table.bytes) == (4, 3, 900)
    assert table.columns == [Column("_id", "string"), Column("tags", "list<struct<a: int, b: long>>")]
    (snapshot,) = table.snapshots
    assert (snapshot.added_rows, snapshot.deleted_rows, snapshot.properties) == (3, 1, {"tailrace.batch": "7"})


def test_tables_of_others_and_missing_folders_are_left_out(tmp_path):
    folder = tmp_path / "shop" / "theirs" / "metadata"
    folder.mkdir(parents=True)
    assert read_tables(tmp_path) == []
    (folder / "v1.metadata.json").write_bytes(metadata(properties={}))
    assert read_tables(tmp_path) == []
    assert read_tables(tmp_path / "absent") == []


def test_drift_is_counted_where_it_was_seen_before():
    once = Drift("a.b", "rest", "string", "int", 2, "2024-01-01", "2024-01-01")
    again = Drift("a.b", "rest", "string", "int", 3, "2024-01-02", "2024-01-02")
    other = Drift("c", "added", "date", "date", 1, "2024-01-02", "2024-01-02")
    merged = add_drift([once], [again, other])
    assert merged == [Drift("a.b", "rest", "string", "int", 5, "2024-01-01", "2024-01-02"), other]
    assert read_drift(write_drift(merged)) == merged
    assert read_drift(None) == []
