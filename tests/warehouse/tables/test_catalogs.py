"""Which tables can be read without Spark, and how PyIceberg is told where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.dashboard.sources.tables import TablesSource
from tailrace.errors import SettingsError
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.tables.catalogs import catalog_properties


@pytest.mark.parametrize(
    "settings",
    [
        {"catalog_config": {"type": "nessie", "uri": "http://127.0.0.1:1/"}},
        {"catalog_config": {"catalog-impl": "com.example.Own"}},
        {"folder": "gs://lake/tables"},
        {"catalog_config": {"type": "hadoop", "warehouse": "hdfs://host/lake"}},
        {"catalog_config": {"type": "jdbc", "uri": "jdbc:oracle:thin:@127.0.0.1:1521/lake"}},
        {"catalog_config": {"type": "jdbc"}},
    ],
)
def test_a_catalog_that_cannot_be_read_is_an_error_and_not_empty(settings):
    with pytest.raises(SettingsError) as refused:
        TablesSource(WarehouseSettings(**settings)).poll()
    assert "tailrace warehouse tables" in refused.value.hint


def test_a_catalog_that_does_not_answer_is_an_error_and_not_empty():
    settings = WarehouseSettings(catalog_config={"type": "jdbc", "uri": "jdbc:postgresql://127.0.0.1:1/lake"})
    with pytest.raises(Exception, match="refused"):
        TablesSource(settings).poll()


@pytest.mark.parametrize("config", [{}, {"type": "hadoop"}, {"io-impl": "org.example.Io"}])
def test_a_folder_needs_no_catalog(config, tmp_path: Path):
    assert TablesSource(WarehouseSettings(folder=str(tmp_path), catalog_config=config)).poll() == []


def test_the_properties_of_java_become_those_of_pyiceberg():
    config = {
        "type": "jdbc",
        "uri": "jdbc:postgresql://h:5432/lake?user=u&sslmode=require",
        "jdbc.password": "p@ss/word",
        "warehouse": "s3://lake/",
        "s3.endpoint": "http://h:9000",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    }
    assert catalog_properties("jdbc", config) == {
        "type": "sql",
        "uri": "postgresql+psycopg://u:p%40ss%2Fword@h:5432/lake?connect_timeout=10&sslmode=require",
        "init_catalog_tables": "false",
        "warehouse": "s3://lake/",
        "s3.endpoint": "http://h:9000",
    }
    rest = {"type": "rest", "uri": "https://c.example.com", "token": "t"}
    assert catalog_properties("rest", rest) == rest
