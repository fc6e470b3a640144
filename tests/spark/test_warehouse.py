"""The warehouse job on real servers: mirrors that equal their collections byte for byte, and every event once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from spark_queries import SECONDS
from tailrace.settings import WarehouseSettings
from tailrace.spark import from_kafka
from tailrace.spark.warehouse import COLUMNS, WarehouseJob, configure_catalog
from tailrace.warehouse import read_tables
from warehouse_load import Load, Topic, differences, now

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
_catalogs = itertools.count()


@pytest.fixture
def settings(tmp_path):
    """The settings of a new warehouse in a folder of its own."""

    def make(**chosen: Any) -> WarehouseSettings:
        name = f"lake{next(_catalogs)}"
        return WarehouseSettings(folder=str(tmp_path / name), catalog=name, **{"maintain_batches": 0, **chosen})

    return make


def run(job: WarehouseJob, spark: Any, kafka: Any, topic: str, checkpoint: Any, format: str = "bson") -> None:
    """Bring the tables to the end of a topic."""
    events = from_kafka(
        spark, kafka.bootstrap_servers, topic, format=format, schema=COLUMNS, keep_bad_records=True,
        max_events_per_batch=150,
    )  # fmt: skip
    query = job.start(events, str(checkpoint), availableNow=True)
    assert query.awaitTermination(SECONDS)
    assert query.exception() is None


def test_mirror_and_history_of_deltas(spark, kafka, database, settings, tmp_path):
    chosen = settings()
    start = now(database.client)
    Load(database.orders, 1).run(150)
    topic = Topic(kafka, database.name)
    count = topic.fill(database, start, copies=2)
    job = WarehouseJob(chosen)
    run(job, spark, kafka, topic.name, tmp_path / "c")
    configure_catalog(spark, chosen)
    mirror = spark.table(f"{chosen.catalog}.{database.name}.orders")
    assert differences(mirror, database.orders) == []
    history = spark.table(f"{chosen.catalog}.{database.name}.orders_history")
    assert history.count() == history.select("token").distinct().count() == count
    mirror.show()
    for t in read_tables(chosen.folder):
        print(t)
