"""What PySpark has no public way to: the driver's JVM, and stream readers that send rows with the plan of a batch.

A session of Spark Connect has no JVM on this side. Then `None` is given, and callers do it another way or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.masking import means_a_secret, shown


def start_jvm(config: Mapping[str, str]) -> None:
    """Start the JVM with the part of a configuration that holds no secret: its command line is for all to see.

    The session's builder hands the whole of it over to the JVM that runs, by its socket. Does nothing to one that runs.
    """
    conf = SparkConf(loadDefaults=False)
    for key, value in without_secrets(config).items():
        conf.set(key, value)
    SparkContext._ensure_initialized(conf=conf)


def without_secrets(config: Mapping[str, str]) -> dict[str, str]:
    """Give the properties that neither are nor hold a secret."""
    return {key: value for key, value in config.items() if not means_a_secret(key) and shown(value) == value}


def jvm_of(spark: SparkSession) -> Any:
    """Give the door to the classes of the JVM, or None where there is none."""
    return getattr(spark, "_jvm", None)


def java_session(spark: SparkSession) -> Any:
    """Give the JVM's own session; every batch comes with a new Python object for the same one."""
    return spark._jsparkSession


def without_checksum_files(spark: SparkSession) -> None:
    """Let Hadoop write local files alone: a checksum file beside each is one more to write, and one more chmod.

    It is set on its file system, because another class of file system would leave the checksum files of earlier
    writers behind, and their readers would not get past those.
    """
    jvm = jvm_of(spark)
    if jvm is None:
        return
    here = jvm.java.net.URI("file:///")
    jvm.org.apache.hadoop.fs.FileSystem.get(here, hadoop_settings(spark)).setWriteChecksum(False)


def without_v1_relation(frame: DataFrame) -> DataFrame:
    """Take the relation for Spark's first streaming API out of the plan of a source that has the second one.

    Spark puts it there for sources that have both, as Kafka's, and prints its options as they are, passwords included:
    in `explain`, and in the message of every error that shows a plan. Batches are read by the second API alone.
    """
    spark = frame.sparkSession
    jvm = jvm_of(spark)
    plan = None if jvm is None else frame._jdf.queryExecution().analyzed()
    if plan is None or plan.getClass().getSimpleName() != "StreamingRelationV2":
        return frame
    nothing = jvm.scala.Option.empty()
    parts = [plan.productElement(number) for number in range(plan.productArity())]
    plain = plan.copy(*(nothing if _is_v1_relation(part) else part for part in parts))
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(java_session(spark), plain), spark)


def _is_v1_relation(part: Any) -> bool:
    if not isinstance(part, JavaObject) or part.getClass().getName() != "scala.Some":
        return False
    content = part.get()
    return isinstance(content, JavaObject) and content.getClass().getSimpleName() == "StreamingRelation"


def count_input_rows(query: StreamingQuery, rows: int) -> None:
    """Add rows that came to the driver without a Spark job to what Spark reports of the batch that runs.

    Where Spark keeps its figures elsewhere one day, they lack those rows, and nothing else changes.
    """
    with suppress(Py4JError, AttributeError):
        plan = query._jsq.streamingQuery().lastExecution().executedPlan()
        plan.collectLeaves().head().longMetric("numOutputRows").add(rows)


def hadoop_settings(spark: SparkSession) -> Any:
    """Give Hadoop's settings as the session has them, an object of its own for the caller to change."""
    return java_session(spark).sessionState().newHadoopConf()


class HadoopFiles:
    """Small files wherever Spark can read and write."""

    def __init__(self, spark: SparkSession, jvm: Any) -> None:
        self._jvm = jvm
        self._configuration = hadoop_settings(spark)

    @classmethod
    def of(cls, spark: SparkSession) -> HadoopFiles | None:
        """Give them, where the session has a JVM."""
        jvm = jvm_of(spark)
        return None if jvm is None else cls(spark, jvm)

    def read(self, location: str) -> str | None:
        """Read a small file; None when it is not there."""
        path, files = self._opened(location)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def write(self, location: str, text: str) -> None:
        """Write a small file as a whole, and onto the disk, before this returns."""
        path, files = self._opened(location)
        made = self._jvm.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}.tmp")
        stream = files.create(made, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        if not files.rename(made, path):
            raise OSError(f"{location} cannot be written")

    def remove(self, location: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        path, files = self._opened(location)
        files.delete(path, True)

    def remove_empty(self, location: str) -> bool:
        """Remove a folder unless something is in it, and say whether it is gone."""
        path, files = self._opened(location)
        if self.names(location):
            return False
        try:
            return bool(files.delete(path, False))
        except Py4JError:  # somebody put something there meanwhile
            return False

    def names(self, location: str) -> list[str]:
        """List a folder; one that is not there is empty."""
        path, files = self._opened(location)
        found = files.listStatus(path) if files.exists(path) else []
        return sorted(status.getPath().getName() for status in found)

    def _opened(self, location: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(location)
        return path, path.getFileSystem(self._configuration)


# Spark asks one class of its own, and no public one, for rows that go along with the plan of a batch (`getCache`). In a
# release without it the tasks read every range themselves, which costs small batches the start of a Python worker.
if TYPE_CHECKING:
    PrefetchingReader = DataSourceStreamReader
else:
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as PrefetchingReader
    except ImportError:
        PrefetchingReader = DataSourceStreamReader
