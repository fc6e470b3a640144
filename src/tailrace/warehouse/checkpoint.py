"""What the checkpoint of a query says: who the query is, and which range of its source a batch has."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from tailrace.warehouse.lake import Commit


def commit_of(spark: SparkSession, checkpoint: str, batch: int) -> Commit:
    """Give what the snapshots of a batch shall say."""
    identity = json.loads(_read(spark, f"{checkpoint}/metadata") or "{}").get("id", checkpoint)
    return Commit(identity, batch, _offsets(spark, checkpoint, batch - 1), _offsets(spark, checkpoint, batch))


def _offsets(spark: SparkSession, checkpoint: str, batch: int) -> str:
    """Give the line of the source; before it are a version and what Spark says about the batch."""
    text = _read(spark, f"{checkpoint}/offsets/{batch}") if batch >= 0 else None
    return "" if text is None else text.strip().splitlines()[-1]


def _read(spark: SparkSession, path: str) -> str | None:
    """Read a small file wherever Spark can."""
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not files.exists(place):
        return None
    stream = files.open(place)
    try:
        text: str = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        return text
    finally:
        stream.close()
