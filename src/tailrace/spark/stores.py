"""Folders in object stores, looked at before a job begins: a job that cannot use them writes nothing anywhere.

Hadoop would try for many minutes to reach a server that is away; the look tries twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tailrace.errors import QueryFailed
from tailrace.masking import masked
from tailrace.object_store import FROM_CATALOG, store_error, uses_s3a
from tailrace.settings import WarehouseSettings
from tailrace.spark.failures import cause_of
from tailrace.spark.jvm import hadoop_settings, jvm_of

_IMPATIENT: Final = {
    "fs.s3a.attempts.maximum": "2",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.connection.establish.timeout": "15s",
    "fs.s3a.connection.timeout": "15s",
}


def check_stores(spark: SparkSession, *locations: str) -> None:
    """Raise, if a folder that is not one of this machine cannot be listed with the session's own settings."""
    jvm = jvm_of(spark)
    if jvm is None:
        return
    for location in locations:
        _check(jvm, spark, location, {})


def check_tables(spark: SparkSession, settings: WarehouseSettings) -> None:
    """Raise, if the folder of the tables cannot be listed, with what the catalog's own properties say of Hadoop."""
    jvm, config = jvm_of(spark), settings.catalog_config
    own = {name.removeprefix(FROM_CATALOG): value for name, value in config.items() if name.startswith(FROM_CATALOG)}
    for location in _table_locations(settings) if jvm is not None else ():
        _check(jvm, spark, location, own)


def _table_locations(settings: WarehouseSettings) -> list[str]:
    """Give where the tables are, as far as Hadoop reads and writes them: not by a catalog's own file client."""
    config = settings.catalog_config
    if not {"type", "catalog-impl"} & config.keys():
        return [config.get("warehouse", settings.folder)]
    is_folder = config.get("type") == "hadoop" and "io-impl" not in config
    return [config["warehouse"]] if uses_s3a(config) or (is_folder and config.get("warehouse")) else []


def _check(jvm: Any, spark: SparkSession, location: str, own: Mapping[str, str]) -> None:
    """List a folder that is not one of this machine; `own` counts more than the session's settings."""
    if urlsplit(location).scheme in ("", "file"):
        return
    configuration = hadoop_settings(spark)
    bucket = urlsplit(location).netloc
    for name, value in {**own, **_IMPATIENT}.items():
        configuration.set(name, value)
    for name in _IMPATIENT:
        configuration.unset(name.replace("fs.s3a.", f"fs.s3a.bucket.{bucket}.", 1))
    path = jvm.org.apache.hadoop.fs.Path(location)
    try:
        files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), configuration)
        try:
            files.exists(path)
        finally:
            files.close()
    except Py4JJavaError as error:
        known = store_error(str(error), location)
        raise known or QueryFailed(f"{location} cannot be read: {masked(cause_of(error))}") from None
