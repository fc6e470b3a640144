"""A folder in a bucket, read without Spark, on a real server that speaks S3 (moto's, which checks signatures)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from s3_server import S3
from tailrace.dashboard.sources.tables import TablesSource
from tailrace.errors import FileUnusable, NotAuthorized, ServerUnreachable, SettingsError, SqlRefused
from tailrace.object_store import file_properties
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.query import ask

FOLDER = "s3a://lake/tables"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3.start(["lake", "empty", "delta"], folder=tmp_path_factory.mktemp("s3")) as server:
        _fill(server)
        server.client().put_object(Bucket="delta", Key="tables/shop/orders/_delta_log/0.json", Body=b"{}")
        yield server


def _fill(server: S3) -> None:
    """Make a table of PyIceberg's, and give its metadata the names that a folder catalog gives it."""
    from pyiceberg.catalog.memory import InMemoryCatalog

    files = file_properties(FOLDER, server.spark_config())
    catalog = InMemoryCatalog("lake", warehouse=FOLDER, **files)
    catalog.create_namespace("shop")
    rows = pa.table({"n": pa.array([1, 2, 3])})
    table = catalog.create_table("shop.orders", rows.schema, location=f"{FOLDER}/shop/orders")
    names = [table.metadata_location]
    table.append(rows)
    names.append(table.metadata_location)
    with table.transaction() as change:
        change.set_properties({"tailrace.kind": "mirror", "tailrace.namespace": "shop.orders"})
    names.append(table.metadata_location)
    client = server.client()
    for number, name in enumerate(names, 1):
        source = name.removeprefix("s3a://lake/")
        client.copy_object(
            Bucket="lake", Key=f"tables/shop/orders/metadata/v{number}.metadata.json", CopySource=f"lake/{source}"
        )


def test_the_newest_metadata_is_read(s3: S3) -> None:
    settings = WarehouseSettings(folder=FOLDER)
    source = TablesSource(settings, s3.spark_config())
    (state,) = source.poll()
    source.close()
    assert (state.name, state.namespace, state.rows, state.files) == ("shop.orders", "shop.orders", 3, 1)
    assert TablesSource(WarehouseSettings(folder="s3a://empty/tables"), s3.spark_config()).poll() == []


def test_a_query_is_answered(s3: S3) -> None:
    assert _answer(WarehouseSettings(folder=FOLDER + "/"), s3.spark_config()) == [(6,)]
    with pytest.raises(SqlRefused, match=r"no table shop\.order\b") as refused:
        _answer(WarehouseSettings(folder=FOLDER), s3.spark_config(), "SELECT n FROM shop.order")
    assert "shop.orders" in refused.value.hint


def test_a_server_that_goes_away_while_rows_are_read_is_no_fault_of_the_query(tmp_path: Path) -> None:
    def rows_without(server: S3) -> list[Any]:
        settings = WarehouseSettings(folder=FOLDER)
        with ask("SELECT n FROM shop.orders", settings, spark_config=server.spark_config()) as answer:
            server.close()
            return list(answer.rows)

    with S3.start(["lake"], folder=tmp_path) as server:
        _fill(server)
        with pytest.raises(ServerUnreachable, match="does not answer"):
            rows_without(server)


def _answer(
    settings: WarehouseSettings, config: dict[str, str], query: str = "SELECT sum(n) FROM shop.orders"
) -> list[Any]:
    with ask(query, settings, spark_config=config) as answer:
        return list(answer.rows)


def test_tables_of_another_catalog_may_be_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    """Its own properties of files count more than Spark's."""
    from pyiceberg.catalog.sql import SqlCatalog

    files = file_properties(FOLDER, s3.spark_config())
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse="s3a://lake/others", **files)
    catalog.create_namespace("shop")
    rows = pa.table({"n": pa.array([4, 5])})
    catalog.create_table("shop.users", rows.schema).append(rows)
    catalog.close()
    config = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/lake.db", "warehouse": "s3a://lake/others"}
    query = "SELECT sum(n) FROM shop.users"
    assert _answer(WarehouseSettings(catalog_config=config), s3.spark_config(), query) == [(9,)]
    own = {**config, "s3.access-key-id": s3.key, "s3.secret-access-key": s3.secret}
    wrong = s3.spark_config() | {"spark.hadoop.fs.s3a.secret.key": "Hunter2"}
    assert _answer(WarehouseSettings(catalog_config=own), wrong, query) == [(9,)]


WRONG = [
    ({"folder": "s3a://nowhere/tables"}, {}, FileUnusable, "s3a://nowhere: there is no such bucket"),
    ({"folder": FOLDER}, {"secret.key": "Hunter2"}, NotAuthorized, "refuses this key"),
    ({"folder": FOLDER}, {"access.key": "AKIANOBODY"}, NotAuthorized, "refuses this key"),
    ({"folder": FOLDER}, {"endpoint": "http://127.0.0.1:9"}, ServerUnreachable, "does not answer"),
    ({"folder": "s3a://delta/tables"}, {}, SettingsError, "Delta table"),
    ({"folder": FOLDER, "format": "delta"}, {}, SettingsError, "cannot be read here"),
    ({"folder": "gs://lake/tables"}, {}, SettingsError, "a folder at gs cannot be read here"),
]


@pytest.mark.parametrize(("chosen", "changed", "kind", "words"), WRONG)
def test_what_is_wrong_is_told(s3: S3, chosen: Any, changed: Any, kind: type[Exception], words: str) -> None:
    config = s3.spark_config() | {f"spark.hadoop.fs.s3a.{name}": value for name, value in changed.items()}
    settings = WarehouseSettings(**chosen)
    for look in (TablesSource(settings, config).poll, partial(_answer, settings, config)):
        with pytest.raises(kind, match=words) as refused:
            look()
        told = f"{refused.value} {refused.value.hint}"
        assert not any(secret in told for secret in (s3.secret, "Hunter2"))
        assert refused.value.hint
