"""A topic into Iceberg tables: our job with history and mirror, and what Spark does alone.

Every run reads a topic of its own, `t0`, `t1` and so on, all with the same number of events.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from types import SimpleNamespace
from typing import Any

from bench.child import Marks, say, say_mark
from bench.latency_jobs import open_spark
from bench.warehouse import Phases, fill, run
from tailrace.settings import WarehouseSettings
from tailrace.spark import from_kafka
from tailrace.warehouse.job import COLUMNS
from tailrace.warehouse.lake import configure_catalog

EVENTS_PER_BATCH = 100_000
"""The default of the job."""


class Tables:
    """The warehouse job, with a mirror that holds documents already."""

    def __init__(self, servers: str, rows: int, folder: str, events: int) -> None:
        self._spark = open_spark()
        self._kafka: Any = SimpleNamespace(bootstrap_servers=servers)
        self._settings = WarehouseSettings(folder=folder, events_per_batch=EVENTS_PER_BATCH)
        self._numbers = itertools.count()
        fill(self._spark, self._settings, rows)
        self._phases = Phases(int(self._spark._jvm.ProcessHandle.current().pid()))

    def run(self, marks: Marks) -> None:
        """Bring the tables to the end of the next topic, and say how fast each kind of table would be alone."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            self._phases.clear()
            marks.begin()
            tell(run(self._spark, self._kafka, self._settings, f"t{next(self._numbers)}", folder))
            rates = {kind: self._phases.rate(marks.events, "reading", kind) for kind in ("history", "mirror")}
            say("alone", json.dumps(rates))


class Append:
    """The same events appended to one Iceberg table by Spark alone: nothing is merged, and nothing is noticed twice."""

    def __init__(self, servers: str, rows: int, folder: str, events: int) -> None:
        self._spark = open_spark()
        self._servers = servers
        self._numbers = itertools.count()
        configure_catalog(self._spark, WarehouseSettings(folder=folder))

    def run(self, marks: Marks) -> None:
        """Append the next topic."""
        topic = f"t{next(self._numbers)}"
        events = from_kafka(self._spark, self._servers, topic, schema=COLUMNS, max_events_per_batch=EVENTS_PER_BATCH)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            marks.begin()
            writer = events.writeStream.format("iceberg").option("checkpointLocation", folder)
            query = writer.trigger(availableNow=True).toTable("lake.bench.appended")
            query.awaitTermination()
            if query.exception():
                raise query.exception()
            tell([one for one in query.recentProgress if one["numInputRows"]])


def tell(batches: list[Any]) -> None:
    """Say how many events came, and how long the batches were at work."""
    took = sum(one["durationMs"]["triggerExecution"] for one in batches) / 1_000
    say_mark("done", sum(one["numInputRows"] for one in batches), took)
