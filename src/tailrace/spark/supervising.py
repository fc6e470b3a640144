"""Keep a streaming query running: whatever ends it by accident, it goes on from its checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tailrace.errors import Outcome, QueryFailed
from tailrace.logs import get_logger
from tailrace.retry import RetryPolicy
from tailrace.spark.checkpoint import QueryCheckpoint
from tailrace.spark.failures import cause_of, error_of, permanent_error
from tailrace.spark.offset import Offset

ATTEMPTS: Final = 10
"""How often a query may fail in a row without finishing a batch."""
_POLICY: Final = RetryPolicy(first=0.5, longest=15.0)
_FOR_PEOPLE: Final = {Outcome.STOP, Outcome.RECOVER}
_log = get_logger("tailrace.spark")


def drain(
    writer: DataStreamWriter, until: Offset, checkpoint: str, *, should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Run a query of `format("tailrace")` in limited batches until it has done everything up to a position.

    A checkpoint that is there already is left alone: Spark would make no batch, and report nothing.

    It is what AvailableNow is to sources with admission control. Spark 4.0 and 4.1 have none for Python sources: that
    trigger asks once where everything ends and makes one batch of it.
    """
    spark = SparkSession.active()
    if not QueryCheckpoint(spark, checkpoint).has_done(until):
        supervise(writer.option("checkpointLocation", checkpoint).start, should_stop=should_stop, until=until)


def has_done(query: StreamingQuery, until: Offset) -> bool:
    """Return whether a query has finished the batch that ends at a position, by Spark's own report.

    Its JSON is read: PySpark's object gives an offset that is a document as the text of a Python dictionary. Through
    Spark Connect the offset is text in that JSON.
    """
    progress = query.lastProgress
    if progress is None:
        return False
    reported = (source.get("endOffset") for source in json.loads(progress.json)["sources"])
    ends = (json.loads(end) if isinstance(end, str) else end for end in reported)
    return all(isinstance(end, dict) and Offset.from_json(end).key >= until.key for end in ends)


def supervise(
    start: Callable[[], StreamingQuery], *, should_stop: Callable[[], bool] = lambda: False, until: Offset | None = None
) -> None:
    """Run a query until it ends by itself, has come to a position, or `should_stop`; start it again when it fails.

    An error of ours that a person has to look at is raised at once. Everything else (a killed worker, a server that is
    away for longer than its client waits) may pass: batches are repeatable, so starting again is always safe. It is
    not started again when it fails again and again without finishing one batch.
    """
    failures = 0
    while True:
        query = start()
        try:
            while not query.awaitTermination(1):
                if should_stop() or (until is not None and has_done(query, until)):
                    return
            return
        except StreamingQueryException as failure:
            failures = 1 if query.lastProgress else failures + 1
            error = error_of(failure) or permanent_error(failure)
            if error is not None and error.outcome in _FOR_PEOPLE:
                raise error from failure
            if failures >= ATTEMPTS:
                raise error or QueryFailed(f"the query failed {failures} times: {cause_of(failure)}") from failure
            _log.warning("query_restarts", error=str(error or cause_of(failure)))
        finally:
            stop(query)
        time.sleep(_POLICY.pause(failures - 1))


def stop(query: StreamingQuery) -> None:
    """Stop a query. If that fails and it has ended all the same, then how it ended is what counts."""
    try:
        query.stop()
    except Exception as failure:
        if query.isActive:
            raise
        _log.warning("query_stop_failed", cause=cause_of(failure))
