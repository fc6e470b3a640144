"""A streaming query of a real Spark on scripted servers of both families, stopped and started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from families import test_cosmosdb as cosmosdb
from families import test_documentdb as documentdb
from scripted_server import ScriptedServer
from spark_queries import started, wait_until

pytestmark = pytest.mark.timeout(900)

INSERTED = [("insert", number) for number in (1, 2, 3, 4)]
REPLACED = [("replace", 1), ("replace", 1), ("delete", 1), ("replace", 4)]


@pytest.mark.parametrize(
    ("family", "script", "fourth", "expected"),
    [
        (documentdb, documentdb.DocumentDb(), documentdb.DocumentDb.event(4), INSERTED),
        (cosmosdb, cosmosdb.CosmosDb(), {"_id": 4, "total": 7}, REPLACED),
    ],
    ids=["documentdb", "cosmosdb"],
)
def test_a_query_goes_on_from_its_checkpoint(
    spark: Any, tmp_path: Path, family: Any, script: Any, fourth: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    from tailrace.spark import register

    register(spark)
    settings = tmp_path / "tailrace.toml"
    settings.write_text(f'[mongodb]\nfamily = "{family.__name__.rpartition("_")[2]}"\n')
    rows: list[tuple[str, int]] = []

    def run(count: int) -> None:
        """Read until there are so many events."""
        options = {"uri": server.uri, "namespaces": "shop.orders", "settingsFile": str(settings)}
        events = spark.readStream.format("tailrace").options(**options).load()
        writer = events.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = started(writer.foreachBatch(lambda frame, _: rows.extend(map(_row, frame.collect()))).start)
        try:
            wait_until(lambda: len(rows) >= count, query)
            query.processAllAvailable()
        finally:
            query.stop()

    with ScriptedServer(script, family.HELLO, family.BUILD) as server:
        run(3)
        script.events.append(fourth)
        run(4)
    assert rows == expected


def _row(row: Any) -> tuple[str, int]:
    return row.op, json.loads(row.document_key)["_id"]
