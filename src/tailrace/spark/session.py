"""The Spark session of the jobs: local, or the one that `spark-submit` made.

Where the connectors' jars come from is the caller's business: the command line and the tests let the stand fetch those
in `connectors.py`, a cluster has them in its image or gets them by `spark-submit --packages`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tailrace.errors import MissingExtra
from tailrace.settings import SparkSettings
from tailrace.spark.connectors import RELEASE
from tailrace.spark.jvm import start_jvm, without_checksum_files
from tailrace.spark.redaction import START
from tailrace.spark.source import register

DELTA_EXTENSIONS = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
ICEBERG_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_CHECKPOINTING = "checkpointing." if RELEASE >= (4, 1) else ""
"""The package to which 4.1 moved what writes checkpoints."""
_LOCAL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Large documents can make a batch of few events more than the heap holds: it is left to the tasks then. The usual
    # limit is the whole of our heap.
    "spark.driver.maxResultSize": "256m",
    # When a batch fails, Spark looks through the whole traceback with a pattern that recurses once per character: a
    # long one overflows the usual stack, and the query would end without its error.
    "spark.driver.extraJavaOptions": "-Xss16m",
    # Spark's usual writer of checkpoints asks Hadoop for the status of links, which Hadoop finds out by starting
    # programs: five for each file (one chmod, four readlink), ten for each micro-batch. This one needs a chmod.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"org.apache.spark.sql.execution.streaming.{_CHECKPOINTING}FileSystemBasedCheckpointFileManager"
    ),
}
_ALWAYS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": ICEBERG_EXTENSIONS,
    # A query without new data would otherwise run batch after batch to let state time out; ours have none in Spark.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Without it, AvailableNow ends after the batch that a crash left unfinished, instead of after all that is there.
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    **START,
    # Small states and shuffles of one machine: 200 tasks a batch, the default, would take longer than the work.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
}
_DELTA: Mapping[str, str] = {
    "spark.sql.extensions": f"{ICEBERG_EXTENSIONS},{DELTA_EXTENSIONS}",
    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
}


@contextmanager
def open_session(
    settings: SparkSettings, *, jars: Sequence[Path] = (), java_home: Path | None = None, table_format: str = "iceberg"
) -> Iterator[SparkSession]:
    """Give a session with the data source `tailrace`, stopped afterwards.

    Under `spark-submit` the master, the memory and the jars are those of the submission, and `settings.config` fills in
    what it left open. A master `sc://host:port` is a server of Spark Connect, which has its own. Otherwise a JVM is
    started on `settings.master`, with these jars; it ends with this process, however that ends, because it watches our
    end of its standard input.
    """
    if is_connect(settings):
        with _connected(settings) as session:
            yield session
        return
    builder = SparkSession.builder.appName(settings.app_name)
    config = session_config(settings, jars, is_submitted=is_submitted(), table_format=table_format)
    for key, value in config.items():
        builder = builder.config(key, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    if not is_submitted():
        start_jvm(config)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(settings.log_level.upper())
    if not is_submitted():
        without_checksum_files(session)
    register(session)
    try:
        yield session
    finally:
        with suppress(Exception):  # after an interrupted call it cannot be asked; the JVM ends with us anyway
            session.stop()


@contextmanager
def _connected(settings: SparkSettings) -> Iterator[SparkSession]:
    """Give a session of Spark Connect, configured as far as its server lets a client."""
    try:
        session = SparkSession.builder.remote(settings.master).getOrCreate()
    except ImportError as error:
        hint = "Install it with: pip install 'pyspark[connect]'"
        raise MissingExtra(f"Spark Connect needs more of pyspark: {error}", hint=hint) from None
    for key, value in {**_ALWAYS, **settings.config}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    register(session)
    try:
        yield session
    finally:
        session.stop()


def is_connect(settings: SparkSettings) -> bool:
    """Whether the master is a server of Spark Connect."""
    return settings.master.startswith("sc://") and not is_submitted()


def is_submitted() -> bool:
    """Whether `spark-submit` runs this program, and has a JVM ready for it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session_config(
    settings: SparkSettings, jars: Sequence[Path], *, is_submitted: bool, table_format: str = "iceberg"
) -> dict[str, str]:
    """Give the configuration of a session; what the user set wins."""
    always = {**_ALWAYS, **_DELTA} if table_format == "delta" else _ALWAYS
    if is_submitted:
        return {**always, **settings.config}
    chosen = {
        **_LOCAL,
        **always,
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        **settings.config,
    }
    # Jars that the user added by Spark's own property are wanted beside the connectors.
    added = [jar.strip() for jar in settings.config.get("spark.jars", "").split(",") if jar.strip()]
    wanted = [*added, *map(str, missing_jars([*settings.jars, *jars]))]
    if wanted:
        chosen["spark.jars"] = ",".join(wanted)
    return chosen


def missing_jars(jars: Sequence[Path]) -> list[Path]:
    """Give those jars that pyspark does not bring along itself: Hadoop and Scala twice would only start slower."""
    present = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return [jar for jar in jars if jar.name not in present]
