"""Reads tables by each library and prints their fingerprints, or why not: `reading.py CATALOG DATABASE.TABLE ...`.

CATALOG is JSON: `{"folder": ...}`, `{"name": ..., "type": "sql", "uri": ...}` or `{"type": "rest", "uri": ...}`. Each
library goes the way that its own documentation shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
from fingerprints import fingerprints

Catalog = Mapping[str, str]


def by_pyiceberg(catalog: Catalog, database: str, table: str) -> Iterable[pa.RecordBatch]:
    return loaded(catalog, database, table).scan().to_arrow_batch_reader()


def by_polars(catalog: Catalog, database: str, table: str) -> Iterable[pa.RecordBatch]:
    import polars as pl

    frame: Any = pl.scan_iceberg(loaded(catalog, database, table)).collect()
    return frame.to_arrow().to_batches()


def by_duckdb(catalog: Catalog, database: str, table: str) -> Iterable[pa.RecordBatch]:
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "httpfs", "iceberg"):
        (file,) = Path(str(files(f"duckdb_extension_{name}"))).rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute("SET TimeZone = 'UTC'")
    if catalog.get("type") == "rest":
        connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{catalog['uri']}', AUTHORIZATION_TYPE 'none')")
        source = f'lake."{database}"."{table}"'
    elif "folder" in catalog:
        source = f"iceberg_scan('{catalog['folder']}/{database}/{table}')"
    else:
        source = f"iceberg_scan('{loaded(catalog, database, table).metadata_location}')"
    return connection.execute(f"SELECT * FROM {source}").to_arrow_reader()


def loaded(catalog: Catalog, database: str, table: str) -> Any:
    """Give PyIceberg's table."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    if "folder" not in catalog:
        return load_catalog(**{"name": "lake", **catalog}).load_table((database, table))
    metadata = Path(catalog["folder"], database, table, "metadata")
    newest = max(metadata.glob("v*.metadata.json"), key=lambda file: int(file.name.split(".")[0][1:]))
    return StaticTable.from_metadata(str(newest))


READERS = {"pyiceberg": by_pyiceberg, "polars": by_polars, "duckdb": by_duckdb}


def attempt(reader: Any, catalog: Catalog, name: str) -> dict[str, str] | str:
    """Give the fingerprints of a table, or the error of who cannot read it."""
    try:
        return fingerprints(reader(catalog, *name.split(".")))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    place = json.loads(sys.argv[1])
    found = {reader: {name: attempt(read, place, name) for name in sys.argv[2:]} for reader, read in READERS.items()}
    print(json.dumps(found))
