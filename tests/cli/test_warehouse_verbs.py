"""`tailrace warehouse tables` and `tailrace schema show` on a folder, without Spark."""

from __future__ import annotations

import json

import pytest

from tailrace.cli.app import run

DRIFT = [
    {
        "field": "amount",
        "change": "rest",
        "found": "string",
        "column": "",
        "count": 3,
        "first_seen": "2024-05-01T00:00:00+00:00",
        "last_seen": "2024-05-02T00:00:00+00:00",
    }
]


@pytest.fixture
def folder(tmp_path):
    """A folder catalog with one mirror."""
    metadata = {
        "properties": {
            "tailrace.kind": "mirror",
            "tailrace.namespace": "shop.orders",
            "tailrace.contract": "evolve",
            "tailrace.drift": json.dumps(DRIFT),
        },
        "current-snapshot-id": 1,
        "snapshots": [{"snapshot-id": 1, "timestamp-ms": 0, "summary": {"total-records": "12"}}],
        "current-schema-id": 0,
        "schemas": [{"schema-id": 0, "fields": [{"name": "amount", "type": "double"}]}],
    }
    place = tmp_path / "shop" / "orders" / "metadata"
    place.mkdir(parents=True)
    (place / "v1.metadata.json").write_text(json.dumps(metadata))
    return str(tmp_path)


def test_tables(folder, capsys):
    assert run(["warehouse", "tables", "--folder", folder]) == 0
    assert "shop.orders" in capsys.readouterr().out
    assert run(["warehouse", "tables", "--folder", folder, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert (table["rows"], table["kind"], table["namespace"]) == (12, "mirror", "shop.orders")


def test_names_are_whole_in_a_pipe(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    long = "a_collection_with_a_name_that_no_terminal_has_room_for" * 3
    (tmp_path / "shop" / "orders").rename(tmp_path / "shop" / long)
    assert run(["warehouse", "tables", "--folder", folder]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert (header.split()[0], line.split()[:3]) == ("table", [f"shop.{long}", "mirror", "12"])


def test_schema(folder, capsys):
    assert run(["schema", "show", "shop.orders", "--folder", folder]) == 0
    shown = capsys.readouterr().out
    assert "contract evolve" in shown
    assert "amount" in shown
    assert run(["schema", "show", "--folder", folder, "--json"]) == 0
    (mirror,) = json.loads(capsys.readouterr().out)
    assert (mirror["columns"], mirror["drift"]) == ([{"name": "amount", "type": "double"}], DRIFT)


def test_nothing_to_show(tmp_path, capsys):
    assert run(["warehouse", "tables", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no tables\n"
    assert run(["schema", "show", "other", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no mirrors\n"
