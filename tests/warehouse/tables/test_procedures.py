"""Procedures of Iceberg find the table they are called for, whatever its database is called."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from tailrace.settings import WarehouseSettings
from tailrace.warehouse.lake import configure_catalog, open_lake
from tailrace.warehouse.tables.names import TableKind

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def test_a_database_may_be_called_as_the_catalog(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its tables could not be put together; for any other, Spark logged that there is no catalog of that name."""
    settings = WarehouseSettings(catalog="twice", folder=str(tmp_path))
    configure_catalog(spark, settings)
    lake = open_lake(spark, settings)
    for database in ("twice", "shop"):
        spark.sql(f"CREATE NAMESPACE twice.{database}")
        spark.sql(f"CREATE TABLE twice.{database}.orders USING iceberg AS SELECT 1 AS _id")
        assert astuple(lake.compact((database, "orders"), TableKind.HISTORY)) == (0, 0, 0)
        assert lake.expire((database, "orders"), keep_hours=1) == 0
    assert "Failed to load catalog" not in capfd.readouterr().err
