"""A collection loaded straight into tables while it is written to, by a driver that is killed at the worst moments."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.owned import GuardedProcess, run_guarded
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.lake import configure_catalog
from warehouse_load import Load, differences

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]
DOCUMENTS = int(os.environ.get("DOCUMENTS", "20000"))
SECONDS = 900.0


def test_a_load_is_exact_under_writes_and_kills(spark: Any, mongodb: Any, database: Any, tmp_path: Path) -> None:
    orders, lake, checkpoint = database.orders, tmp_path / "lake", tmp_path / "checkpoint"
    for begin in range(0, DOCUMENTS, 1_000):
        orders.insert_many(
            [{"_id": f"d{number}", "n": number, "text": "x" * 100} for number in range(begin, begin + 1_000)]
        )
    tables = lake / database.name
    moments: list[Callable[[], bool]] = [
        lambda: any((tables / "orders_history").rglob("*.parquet")),
        lambda: (tables / "orders_history" / "metadata" / "v2.metadata.json").exists(),
        lambda: any((tables / "orders" / "data").rglob("*.parquet")),
        lambda: (checkpoint / "tailrace-start.json").exists(),
    ]
    command = [sys.executable, "-m", "tailrace.cli.app", "warehouse", "run", f"{database.name}.orders", "--backfill"]
    command += ["--uri", mongodb.uri, "--folder", str(lake), "--checkpoint", str(checkpoint), "--once"]
    environment = {**os.environ, "TAILRACE_SPARK__MASTER": "local[2,4]", "TAILRACE_WAREHOUSE__EVENTS_PER_BATCH": "5000"}
    stopped = threading.Event()

    def write() -> None:
        load = Load(orders, 11, keys=400)
        while not stopped.is_set():
            load.step()
            orders.delete_one({"n": {"$gte": 0}, "_id": f"d{load._chance.randrange(DOCUMENTS)}"})
            time.sleep(0.005)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for moment in moments:
            with GuardedProcess[bytes](command, env=environment, cwd=tmp_path) as driver:
                deadline = time.monotonic() + SECONDS
                while not moment() and driver.poll() is None:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                driver.kill()
                driver.wait(SECONDS)
    finally:
        stopped.set()
        writer.join()
    done = run_guarded(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    settings = WarehouseSettings(folder=str(lake), catalog=f"lake_{database.name}")
    configure_catalog(spark, settings)
    assert differences(spark.table(f"{settings.catalog}.{database.name}.orders"), orders) == []
    events = spark.table(f"{settings.catalog}.{database.name}.orders_history").where("op <> 'read'")
    assert events.count() == events.select("token").distinct().count()
    print(f"{orders.count_documents({})} documents, {events.count()} events")
