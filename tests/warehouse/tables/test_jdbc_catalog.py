"""A catalog in PostgreSQL, by the settings that the documentation shows."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from bson.timestamp import Timestamp

from tailrace.dashboard.sources.tables import TablesSource
from tailrace.owned import run_guarded
from tailrace.settings import Settings
from warehouse_load import Load, Topic, now

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[3] / "docs" / "warehouse.md"
VERBS = """
import sys
from tailrace.cli.app import run

topic, servers, checkpoint = sys.argv[1:]
source = ["--topics", topic, "--servers", servers, "--once", "--checkpoint", checkpoint, "--format", "bson"]
assert run(["warehouse", "run", *source]) == 0
assert run(["warehouse", "tables", "--json"]) == 0
"""
"""Both verbs in one process, because each would start a JVM of its own."""


def documented(**values: str) -> str:
    """The example of the page, with a server, a user and a folder that exist."""
    (example,) = (block for block in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "jdbc" in block)
    assert tomllib.loads(example)["spark"]["config"].keys() == {"spark.jars.packages"}, "a driver is fetched by name"
    for name, value in values.items():
        example, count = re.subn(rf'(\b{name}"? = )"[^"]*"', rf'\1"{value}"', example)
        assert count == 1
    return example


def test_the_documented_catalog_keeps_the_tables(postgres, kafka, database, tmp_path):
    topic = filled(kafka, database)
    uri = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres"
    text = documented(uri=uri, user="postgres", warehouse=str(tmp_path / "lake"))
    (tmp_path / "tailrace.toml").write_text(text)
    done = run_guarded(
        [sys.executable, "-c", VERBS, topic.name, kafka.bootstrap_servers, str(tmp_path / "c")],
        cwd=tmp_path, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables: Any = json.loads(done.stdout[done.stdout.index("[") :])
    rows = {table["name"]: table["rows"] for table in tables}
    assert rows[f"{database.name}.orders"] == database.orders.count_documents({})
    assert rows[f"{database.name}.orders_history"] > 0
    source = TablesSource(Settings.load(tmp_path / "tailrace.toml", {}).warehouse)
    seen = json.loads(json.dumps([asdict(table) for table in source.poll()], default=str))
    assert seen == sorted(tables, key=lambda table: table["name"]), "the dashboard sees what Spark sees"
    source.close()


def filled(kafka: Any, database: Any) -> Topic:
    start: Timestamp = now(database.client)
    Load(database.orders, 71).run(40)
    topic = Topic(kafka, f"jdbc-{database.name}")
    topic.fill(database, start)
    return topic
