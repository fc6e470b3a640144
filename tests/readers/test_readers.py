"""Mirror and history, read by Spark, PyIceberg, Polars, DuckDB and `tailrace sql`, through three kinds of catalogs.

Every reader gives the same fingerprint of every column, for tables of every format version that the settings know, and
of every writer: Spark, and the driver, whose small batches leave deletion vectors and files that it put together. What
one of them cannot do is named in `KNOWN`, and the test fails when that no longer holds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pymongo import DeleteOne, ReplaceOne, UpdateOne

from readers.fingerprints import fingerprints, fingerprints_of_rows
from rest_catalog import RestCatalog
from rest_catalog import jars as rest_jars
from tailrace.capture.source.namespaces import Namespaces
from tailrace.cli.spark_session import fetched_connectors
from tailrace.owned import run_guarded
from tailrace.settings import SparkSettings, WarehouseSettings
from tailrace.spark.options import own_options
from tailrace.spark.session import open_session
from tailrace.stand.cache import made_once
from tailrace.stand.java import java_home
from tailrace.warehouse.job import COLUMNS, WarehouseJob
from tailrace.warehouse.lake import configure_catalog
from tailrace.warehouse.query import ask
from tailrace.warehouse.tables.format import Commit
from tailrace.warehouse.tables.states import newest_metadata_file
from warehouse_load import RAW, VALUES, now

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]
DOCUMENTS = int(os.environ.get("DOCUMENTS", "20000"))
LIBRARIES = (
    "polars==2.1.0",
    "polars-runtime-32==2.1.0",
    "duckdb==1.5.5",
    *(f"duckdb-extension-{name}==1.5.5" for name in ("avro", "httpfs", "iceberg")),
)
"""Beside the environment's own PyIceberg. The extension of DuckDB for Iceberg comes from PyPI for this release."""
KNOWN = ["deep", "items", "lines"]
"""Columns with lists of documents: PyIceberg 0.12 by itself gives `[]` for null there, `tailrace sql` does not."""
WAYS = (("spark", 2), ("spark", 3), ("driver", 3))
"""Who writes the changes, and the version of Iceberg's format; `warehouse.format_version` chooses one."""
ROUNDS = 40
"""Batches of the driver; sixteen files of a size are put together."""
TABLES = ("orders", "orders_history")
READING = Path(__file__).with_name("reading.py")
MORE: dict[str, list[Any]] = {
    "int": [0, -(2**31), 2**31 - 1],
    "long": [Int64(-(2**63)), Int64(2**63 - 1)],
    "number": [float("nan"), float("-inf"), 5e-324],
    "price": [Decimal128("0"), Decimal128("-1.000000000000000001"), Decimal128("NaN"), Decimal128("1E+6000")],
    "when": [DatetimeMS(-62135596800000), DatetimeMS(253402300799999), DatetimeMS(2**62), DatetimeMS(0)],
    "uuid": [Binary.from_uuid(uuid.UUID(int=2**127 + 5))],
    "key": [ObjectId("f" * 24)],
    "rare": [MinKey(), MaxKey(), Regex("^a", "im"), Code("f"), Timestamp(2**32 - 1, 1), DBRef("c", 1)],
    "lines": [None, [], [{"sku": "a", "tags": None}], [{"sku": None, "tags": []}, {"sku": "b", "tags": ["x", None]}]],
    "deep": [{"a": {"b": {"c": [{"d": [{"e": 1}]}, {"d": None}, {"d": []}]}}}, {"a": None}, None],
}  # fmt: skip


def document(number: int, chance: random.Random) -> dict[str, Any]:
    """A document with values of every type, some missing; equal numbers give equal documents."""
    fields = {**VALUES, **MORE}
    names = chance.sample(sorted(fields), chance.randrange(2, len(fields)))
    return {"_id": key(number), "number_": number, **{name: chance.choice(fields[name]) for name in names}}


def key(number: int) -> Any:
    kinds: tuple[Any, ...] = (number, f"k{number}", ObjectId(f"{number:024x}"), Int64(number), {"a": number})
    return kinds[number % len(kinds)]


def libraries() -> Path:
    """The folder with the readers that the environment lacks, for the search path."""

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        assert run_guarded([*pip, "--target", str(folder), *LIBRARIES], timeout=900).returncode == 0

    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return made_once(f"table-readers-polars-2.1.0-duckdb-1.5.5-{tag}", install)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """A session that has a driver for a catalog in SQLite, too."""
    (driver,) = (jar for jar in rest_jars() if jar.name.startswith("sqlite-jdbc"))
    settings = SparkSettings(master="local[2,4]", driver_memory="2g", log_level="error")
    with open_session(settings, jars=[*fetched_connectors(), driver], java_home=java_home()) as spark:
        yield spark


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables of one collection in one catalog, and how each side finds them."""

    settings: WarehouseSettings
    catalog: dict[str, str]
    """As `reading.py` takes it."""
    database: str

    def spark(self, spark: Any, table: str) -> dict[str, str]:
        configure_catalog(spark, self.settings)
        frame = spark.table(f"`{self.settings.catalog}`.`{self.database}`.`{table}`")
        return fingerprints(frame.toArrow().to_batches())

    def sql(self, table: str) -> dict[str, str]:
        with ask(f'SELECT * FROM "{self.database}"."{table}"', self.settings) as answer:
            return fingerprints_of_rows(answer.columns, list(answer.rows))


def read_by_others(lakes: list[Lake]) -> dict[str, dict[str, dict[str, str] | str]]:
    """Give what each other reader makes of each table: fingerprints, or its error."""
    names = [f"{lake.database}.{table}" for lake in lakes for table in TABLES]
    environment = {**os.environ, "PYTHONPATH": str(libraries())}
    words = [sys.executable, str(READING), json.dumps(lakes[0].catalog), *names]
    done = run_guarded(words, capture_output=True, text=True, timeout=7000, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, dict[str, str] | str]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def written(session: Any, mongodb: Any, tmp_path_factory: Any) -> Iterator[list[Lake]]:
    """Tables of each way, of a collection that was loaded, then changed: a fifth updated and deleted."""
    name, folder = f"readers_{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("lake")
    with mongodb.client() as client:
        names = [f"{name}_{writer}_{version}" for writer, version in WAYS]
        yield [_written(session, mongodb.uri, client, name, way, folder) for name, way in zip(names, WAYS, strict=True)]
        for name in names:
            client.drop_database(name)


def _written(session: Any, uri: str, client: Any, name: str, way: tuple[str, int], folder: Path) -> Lake:
    chance, orders, (writer, version) = random.Random(1), client[name].orders, way
    options: dict[str, Any] = {"format_version": version, "maintain_batches": 0}
    if writer == "driver":
        options |= {"maintain_batches": 10_000, "compaction_share": 1.0, "driver_events": DOCUMENTS}
    settings = WarehouseSettings(folder=str(folder), catalog=f"written_{writer}_{version}", **options)
    for begin in range(0, DOCUMENTS, 1_000):
        numbers = range(begin, min(begin + 1_000, DOCUMENTS))
        orders.insert_many([document(number, chance) for number in numbers])
    job = WarehouseJob(settings, Namespaces.parse([f"{name}.orders"]), uri=uri)
    start = job.backfill(session, uri, [f"{name}.orders"])
    chosen = chance.sample(range(DOCUMENTS), DOCUMENTS // 5)

    def events() -> Any:
        since = {**own_options(uri), "namespaces": f"{name}.orders", "startAtOperationTime": start}
        return session.read.format("tailrace").options(**since).schema(COLUMNS).load()

    size = 1_000 if writer == "spark" else -(-len(chosen) // ROUNDS)
    for number, begin in enumerate(range(0, len(chosen), size), 1):
        at = now(client)
        orders.bulk_write([change(one, chance) for one in chosen[begin : begin + size]])
        if writer == "driver":
            start = f"{at.time}:{at.inc}"
            job.apply(events(), number)
    if writer == "driver":
        for table in TABLES:
            made = {row.operation for row in session.table(f"{settings.catalog}.{name}.{table}.snapshots").collect()}
            assert "replace" in made, f"{table} was not compacted"
    else:
        job.write(events(), Commit("changes", 0))
    mirror = session.table(f"{settings.catalog}.{name}.orders")
    documents = orders.with_options(codec_options=RAW).find()
    assert {bytes(row[0]) for row in mirror.select("_bson").collect()} == {bytes(found.raw) for found in documents}
    return Lake(settings, {"folder": settings.folder}, name)


@pytest.fixture(scope="module", params=["folder", "sql", "rest"])
def lakes(request: pytest.FixtureRequest, written: list[Lake], tmp_path_factory: Any) -> Iterator[list[Lake]]:
    """The same tables through each kind of catalog, in which their newest metadata files are registered."""
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
        case "folder":
            yield written
        case "sql":
            # A catalog in a database is known there by its name, for all of its clients.
            uri, place = f"sqlite:///{folder}/catalog.db", f"file://{folder}"
            config = {"type": "jdbc", "uri": f"jdbc:sqlite:{folder}/catalog.db", "warehouse": place}
            with closing(SqlCatalog("sql_lake", uri=uri, warehouse=place)) as catalog:
                others = {"name": "sql_lake", "type": "sql", "uri": uri}
                yield [register(catalog, one, "sql", config, others) for one in written]
        case "rest":
            with RestCatalog.start(folder / "lake", folder=folder / "server") as server:
                config = {"type": "rest", "uri": server.url}
                with closing(load_catalog("lake", **config)) as catalog:
                    yield [register(catalog, one, "rest", config, config) for one in written]


def register(catalog: Any, written: Lake, kind: str, config: dict[str, str], others: dict[str, str]) -> Lake:
    catalog.create_namespace(written.database)
    for table in TABLES:
        file = newest_metadata_file(written.settings.folder, written.database, table)
        assert file is not None
        catalog.register_table((written.database, table), str(file))
    return Lake(WarehouseSettings(catalog=f"{kind}_lake", catalog_config=config), others, written.database)


def change(number: int, chance: random.Random) -> Any:
    chosen = {"_id": key(number)}
    match number % 4:
        case 0:
            return UpdateOne(chosen, {"$set": {"amount": number + 0.5, "lines": None}, "$unset": {"deep": 1}})
        case 1:
            return ReplaceOne(chosen, document(number, chance))
        case _:
            return DeleteOne(chosen)


def test_all_readers_read_the_same(lakes: list[Lake], session: Any) -> None:
    others, differing = read_by_others(lakes), {}
    for lake, way in zip(lakes, WAYS, strict=True):
        for table in TABLES:
            expected = lake.spark(session, table)
            assert int(expected["rows"]) >= DOCUMENTS * 0.8
            found = {"tailrace sql": lake.sql(table)}
            found |= {reader: seen[f"{lake.database}.{table}"] for reader, seen in others.items()}
            for reader, seen in found.items():
                if seen != expected:
                    differing[reader, way, table] = _differing(expected, seen)
    assert differing == {("pyiceberg", way, "orders"): KNOWN for way in WAYS}


def _differing(expected: dict[str, str], seen: dict[str, str] | str) -> Any:
    if isinstance(seen, str):
        return seen
    return sorted(name for name in expected.keys() | seen.keys() if expected.get(name) != seen.get(name))
