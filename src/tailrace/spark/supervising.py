"""Keep a streaming query running: whatever ends it by accident, it goes on from its checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.errors import Outcome, QueryFailed
from tailrace.retry import RetryPolicy
from tailrace.spark.failures import error_of

ATTEMPTS: Final = 10
"""How often a query may fail in a row without finishing a batch."""
_POLICY: Final = RetryPolicy(first=0.5, longest=15.0)
_FOR_PEOPLE: Final = {Outcome.STOP, Outcome.RECOVER}
_log = logging.getLogger("tailrace.spark")


def supervise(start: Callable[[], StreamingQuery], *, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Run a query until it ends by itself or `should_stop`, and start it again when it fails.

    An error of ours that a person has to look at is raised at once. Everything else (a killed worker, a server that is
    away for longer than its client waits) may pass: batches are repeatable, so starting again is always safe. It is
    given up when it fails again and again without finishing one batch.
    """
    failures = 0
    while True:
        query = start()
        try:
            while not query.awaitTermination(1):
                if should_stop():
                    return
            return
        except StreamingQueryException as failure:
            failures = 1 if query.lastProgress else failures + 1
            error = error_of(failure)
            if error is not None and error.outcome in _FOR_PEOPLE:
                raise error from failure
            if failures >= ATTEMPTS:
                raise error or QueryFailed(f"the query failed {failures} times: {_first_line(failure)}") from failure
            _log.warning("the query failed and starts again: %s", error or _first_line(failure))
        finally:
            query.stop()
        time.sleep(_POLICY.pause(failures - 1))


def _first_line(failure: Exception) -> str:
    return str(failure).strip().splitlines()[0]
