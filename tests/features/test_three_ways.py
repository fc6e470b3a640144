"""One definition in three ways: kept in Redis, exported from the history, tried on the collections. All are equal.

The history is a real Iceberg table, the events are those of a real stream, and MongoDB's aggregation judges them.
"""

from __future__ import annotations

import csv
import json
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bson
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from feature_language import ENTITIES, LANGUAGE, NAMESPACES, Both, assert_equal, change_something, expected_of
from tailrace.cli.app import run
from tailrace.features.contribution import entity_text

HISTORY = pa.schema([("token", pa.string()), ("raw", pa.binary())])


@pytest.fixture
def lake(tmp_path, monkeypatch) -> Path:
    """A SQL catalog without tables, which the verbs find by their settings."""
    config = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "warehouse": str(tmp_path / "lake")}
    monkeypatch.setenv("TAILRACE_WAREHOUSE__CATALOG_CONFIG", json.dumps(config))
    return tmp_path


def write_histories(folder: Path, database: Any, events: list[dict[str, Any]]) -> None:
    """Write the events as the warehouse has them, in no order."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace(database.name)
    for name in ("payments", "logins"):
        mine = [one for one in events if one["ns"].get("coll") == name]
        random.Random(1).shuffle(mine)
        rows = [{"token": one["_id"]["_data"], "raw": bson.encode(one)} for one in mine]
        table = catalog.create_table((database.name, f"{name}_history"), HISTORY)
        table.append(pa.Table.from_pylist(rows, HISTORY))
    catalog.close()


def exported(file: Path) -> dict[tuple[str, int], dict[str, Any]]:
    rows = pyarrow.parquet.read_table(file).to_pylist()
    return {
        (row.pop("entity"), round(row.pop("at").timestamp() * 1000)): {
            name: json.loads(value) if name.startswith("last_") and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    }


def test_the_three_ways_of_a_definition_are_equal(database, redis_server, mongodb, lake, capsys, monkeypatch):
    both, chance = Both(database, redis_server.url, "ways"), random.Random(11)
    text = LANGUAGE.replace(NAMESPACES[0], both.definition.namespaces[0])
    file = lake / "definition.toml"
    file.write_text(text.replace(NAMESPACES[1], both.definition.namespaces[1]))
    past: dict[int, dict[tuple[Any, ...], dict[str, Any]]] = {}
    with database.watch(max_await_time_ms=200) as stream:
        for part in range(3):
            for number in range(40):
                change_something(both, chance, number + 30 * (part > 0))
            time.sleep(0.02)  # moments are told apart by milliseconds
            moment = round(datetime.now(UTC).timestamp() * 1000)
            past[moment] = {one: expected_of(database, both.definition, one, moment) for one in ENTITIES}
            time.sleep(0.02)
        events = []
        while (event := stream.try_next()) is not None:
            events.append(event)
    write_histories(lake, database, events)

    # From the history, at past moments: what happened later has no part in it.
    output = lake / "features.parquet"
    moments = [f"--as-of={datetime.fromtimestamp(moment / 1000, UTC).isoformat()}" for moment in past]
    assert run(["features", "export", str(file), "-o", str(output), *moments]) == 0, capsys.readouterr().err
    found = exported(output)
    assert len({at for _, at in found}) == 3
    for moment, expected in past.items():
        for entity, values in expected.items():
            if values["events_forever"]:
                assert_equal(found[entity_text(entity), moment], values)
    capsys.readouterr()

    # A row for each label, whatever their order.
    spine = lake / "labels.csv"
    with spine.open("w") as handle:
        writer = csv.writer(handle)
        writer.writerow(["user", "card.kind", "at", "is_fraud"])
        for moment in sorted(past, reverse=True):
            at = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
            writer.writerows([entity[0], entity[1], at, entity[0] == "u2"] for entity in ENTITIES if entity[0] != 5)
    labelled = lake / "labelled.parquet"
    assert run(["features", "export", str(file), "-o", str(labelled), "--spine", str(spine)]) == 0
    rows = pyarrow.parquet.read_table(labelled).to_pylist()
    assert len(rows) == 12
    for row in rows:
        # In CSV a column has one type: the card 7 is a text here, and no entity has such a card.
        known = past[round(row["at"].timestamp() * 1000)].get((row["user"], row["card.kind"]))
        assert row["events_forever"] == (known["events_forever"] if known else 0)
        assert row["is_fraud"] == (row["user"] == "u2")
    capsys.readouterr()

    # From the documents as they are, and in Redis, now.
    now = datetime.now(UTC)
    at = round(now.timestamp() * 1000)
    monkeypatch.setenv("TAILRACE_MONGODB__URI", mongodb.uri)
    assert run(["features", "try", str(file), "--json", "--entities", "100", f"--at={now.isoformat()}"]) == 0
    tried = {one.pop("entity"): one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    both.at = at
    for event in events:
        collected = collected_of(both, event)
        both.store.apply(collected)
    for entity in ENTITIES:
        expected = expected_of(database, both.definition, entity, at)
        assert_equal(both.values(entity, at), expected)
        if expected["events_forever"]:
            assert_equal(tried[entity_text(entity)], expected)
    both.redis.close()


def collected_of(both: Both, event: dict[str, Any]) -> Any:
    from tailrace.features.changes import Collected

    collected = Collected(both.definition)
    collected.add(pa.record_batch({"raw": pa.array([bson.encode(event)], pa.binary())}))
    return collected.changes


def test_a_dry_run_of_nothing_says_so(database, mongodb, lake, capsys, monkeypatch):
    monkeypatch.setenv("TAILRACE_MONGODB__URI", mongodb.uri)
    file = lake / "definition.toml"
    file.write_text(LANGUAGE.replace("shop.", f"{database.name}."))
    assert run(["features", "try", str(file)]) == 0
    assert "has an entity" in capsys.readouterr().out
    database.payments.insert_many({"user": "u1", "card": {"kind": "visa"}, "at": datetime.now(UTC)} for _ in range(5))
    assert run(["features", "try", str(file), "--limit", "3", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["events_forever"] == 3
    assert "more than 3 documents" in printed.err


def test_an_export_needs_moments(lake, capsys):
    file = lake / "definition.toml"
    file.write_text(LANGUAGE)
    assert run(["features", "export", str(file), "-o", str(lake / "x.parquet")]) != 0
    assert "--as-of" in capsys.readouterr().err
    assert run(["features", "export", str(file), "-o", str(lake / "x.parquet"), "--as-of", "1h"]) != 0
    assert "error[server-unreachable]: the catalog cannot be read" in capsys.readouterr().err
    write_histories(lake, SimpleNamespace(name="other"), [])
    assert run(["features", "export", str(file), "-o", str(lake / "x.parquet"), "--as-of", "1h"]) != 0
    assert "error[sql-refused]: there is no table shop.payments_history" in capsys.readouterr().err
    assert not (lake / "x.parquet").exists()
