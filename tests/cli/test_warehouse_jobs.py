"""The verbs of the warehouse on real tables: topics in, tables out, maintained and built anew by the command line.

The verbs share the Spark session of the tests, because each would start a JVM of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tailrace.cli.app import run
from warehouse_load import Load, Topic, differences, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
Verb = Callable[..., str]


@pytest.fixture
def verb(spark, monkeypatch, capsys) -> Verb:
    """Run a verb that succeeds, and give what it prints."""

    @contextmanager
    def shared(_: Any, **__: Any) -> Iterator[Any]:
        yield spark

    def call(*words: str) -> str:
        assert run(list(words)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    monkeypatch.setattr("tailrace.cli.spark_session.spark_session", shared)
    return call


@pytest.fixture
def catalog(monkeypatch) -> str:
    """A catalog that the session does not know yet; it never forgets one."""
    name = f"lake_{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("TAILRACE_WAREHOUSE__CATALOG", name)
    return name


def filled_topic(kafka: Any, database: Any, seed: int) -> Topic:
    """A topic with a history of `orders`."""
    start = now(database.client)
    Load(database.orders, seed).run(60)
    topic = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}")
    topic.fill(database, start)
    return topic


def test_tables_are_kept_maintained_and_rebuilt(spark, verb, catalog, kafka, database, tmp_path):
    topic, folder = filled_topic(kafka, database, 31), ["--folder", str(tmp_path / "lake")]
    source = ["--topics", topic.name, "--format", "bson", "--servers", kafka.bootstrap_servers, *folder]
    name = f"{database.name}.orders"
    for number in range(2):
        verb("warehouse", "run", *source, "--once", "--checkpoint", str(tmp_path / "c"))
        mirror = spark.table(f"{catalog}.{name}")
        assert differences(mirror, database.orders) == []
        start = now(database.client)
        if number == 0:
            Load(database.orders, 32).run(60)
            topic.fill(database, start)
    tables = {one["name"]: one for one in json.loads(verb("warehouse", "tables", *folder, "--json"))}
    assert tables[name]["rows"] == database.orders.count_documents({})
    assert len(tables[f"{name}_history"]["snapshots"]) == 2
    assert f"{name}: " in verb("warehouse", "compact", name, *folder)
    removed = verb("warehouse", "expire", *folder, "--keep-hours", "0", "--orphans").splitlines()
    assert {line.partition(":")[0] for line in removed} == set(tables)
    (schema,) = json.loads(verb("schema", "show", name, *folder, "--json"))
    assert {"_bson", "amount"} <= {column["name"] for column in schema["columns"]}
    assert [one for one in schema["drift"] if one["field"] == "amount"]
    # What a mirror lost comes back from the topics.
    spark.sql(f"DELETE FROM {catalog}.{name} WHERE true")
    rebuilt = verb("warehouse", "rebuild", name, *source)
    assert rebuilt == f"{name}: 0 rows became {database.orders.count_documents({})}\n"
    assert differences(spark.table(f"{catalog}.{name}"), database.orders) == []


def test_another_format_stops_and_dead_letters_come_back(spark, verb, catalog, kafka, database, tmp_path, capsys):
    folder, checkpoint = ["--folder", str(tmp_path / "lake")], ["--checkpoint", str(tmp_path / "c")]
    start = now(database.client)
    database.orders.insert_many({"_id": number} for number in range(5))
    topic = Topic(kafka, f"{database.name}-{uuid.uuid4().hex}", "json")
    topic.fill(database, start)
    source = ["--topics", topic.name, "--servers", kafka.bootstrap_servers, *folder, *checkpoint, "--once"]
    assert run(["warehouse", "run", *source, "--format", "bson"]) != 0
    printed = capsys.readouterr().err
    assert "error[format-mismatch]: none of 5 records can be read as bson: they look like json" in printed, printed
    start = now(database.client)
    database.orders.insert_one({"_id": "other"})
    other = Topic(kafka, topic.name, "bson")
    other.fill(database, start)
    start = now(database.client)
    database.orders.insert_one({"_id": "as the first ones"})
    topic.fill(database, start)
    verb("warehouse", "run", *source)
    assert len(differences(spark.table(f"{catalog}.{database.name}.orders"), database.orders)) == 1
    replayed = verb("warehouse", "replay-dead-letters", *folder, "--format", "bson")
    assert replayed == "1 records are in the tables, 0 cannot be read\n"
    assert differences(spark.table(f"{catalog}.{database.name}.orders"), database.orders) == []
    assert spark.table(f"{catalog}.tailrace.dead_letters").isEmpty()
