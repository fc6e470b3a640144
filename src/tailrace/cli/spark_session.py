"""A Spark session for the verbs that run jobs: the stand fetches Java and the connector jars where they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import MissingExtra
from tailrace.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Give a session; under `spark-submit`, or with jars in the settings, nothing is fetched."""
    try:
        from tailrace.spark import session
    except ImportError as error:
        hint = "Install it with: pip install 'tailrace[spark]'"
        raise MissingExtra(f"Spark jobs need {error.name}", hint=hint) from None
    if session.is_submitted():
        with session.open_session(settings) as spark:
            yield spark
        return
    from tailrace.stand.java import java_home

    jars = [] if settings.jars else fetched_connectors()
    with session.open_session(settings, jars=jars, java_home=java_home()) as spark:
        yield spark


def fetched_connectors() -> list[Path]:
    """Give the pinned jars of the Kafka and Iceberg connectors, fetched on the first call."""
    from tailrace.spark.session import CONNECTOR_CHECKSUMS, CONNECTORS
    from tailrace.stand.maven import fetch_jars, read_checksums

    return fetch_jars("spark-connectors", CONNECTORS, read_checksums(CONNECTOR_CHECKSUMS))
