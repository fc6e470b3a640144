"""A program that has a session of Spark Connect and nothing of a JVM: `connect_client.py STEP JSON` prints what it got.

Each step is what a page of the documentation says can be done through Connect.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from feature_load import transactions
from tailrace.errors import TailraceError
from tailrace.features.job import FeatureJob
from tailrace.settings import WarehouseSettings
from tailrace.spark import error_of, register, supervise
from tailrace.warehouse.job import WarehouseJob
from tailrace.warehouse.lake import configure_catalog

Given = dict[str, Any]


def source(spark: SparkSession, given: Given) -> Any:
    """The documents of a collection, its history, and a stream of it."""
    register(spark)
    options = {"uri": given["uri"], "namespaces": given["namespace"]}
    documents = spark.read.format("tailrace").options(**options, snapshot="true").load()
    start = {"startAtOperationTime": given["start"]}
    history = spark.read.format("tailrace").options(**options, **start).load()
    inferred = spark.read.format("tailrace").options(**options, snapshot="true", inferSchema="true").load()
    stream = spark.readStream.format("tailrace").options(**options, **start).load()
    query = stream.writeStream.format("memory").queryName("events").trigger(availableNow=True)
    supervise(query.option("checkpointLocation", given["checkpoint"]).start)
    return {
        "documents": documents.count(),
        "history": history.groupBy("op").count().orderBy("op").collect(),
        "sum": inferred.selectExpr("sum(full_document.amount)").first()[0],
        "stream": spark.sql("SELECT op, count(*) FROM events GROUP BY op ORDER BY op").collect(),
    }


def refused(spark: SparkSession, given: Given) -> Any:
    """An error of the source comes with its code."""
    register(spark)
    try:
        spark.read.format("tailrace").options(uri=given["uri"], namespaces=given["namespace"]).load().count()
    except Exception as error:
        found = error_of(error)
        return found.code if found else repr(error)
    return None


def features(spark: SparkSession, given: Given) -> Any:
    """The features job, in tasks: the documents that are there, then the stream from that time on."""
    register(spark)
    job = FeatureJob(transactions(given["namespace"], given["name"]), given["redis"])
    start = given.get("start") or job.backfill(spark, given["uri"])
    if "start" in given:
        events = job.events(spark, given["uri"], {"startAtOperationTime": start})
        supervise(lambda: job.start(events, given["checkpoint"], availableNow=True))
    return start


def tables(spark: SparkSession, given: Given) -> Any:
    """Tables, by a catalog that the session is told of; writing them is refused."""
    settings = WarehouseSettings(folder=given["folder"], catalog="lake")
    configure_catalog(spark, settings)
    try:
        WarehouseJob(settings).recorded(spark)
    except TailraceError as error:
        code = error.code
    mirror = spark.table(f"lake.{given['table']}")
    past = spark.sql(f"SELECT count(*) FROM lake.{given['table']}_history")
    return {
        "rows": mirror.count(),
        "sum": mirror.selectExpr("sum(n)").first()[0],
        "events": past.first()[0],
        "code": code,
    }


STEPS: dict[str, Callable[[SparkSession, Given], Any]] = {
    step.__name__: step for step in (source, refused, features, tables)
}

if __name__ == "__main__":
    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    print(json.dumps(STEPS[sys.argv[2]](session, json.loads(sys.argv[3]))))
