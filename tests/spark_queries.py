"""Run streaming queries to a point, and look at what they gave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MOST_STARTS = 20
_NO_SOURCES_YET = "Initializing"
"""How what a query says of itself begins until its sources are planned."""
SECONDS = 240.0
"""The first batch of a query alone takes a minute on a machine with other work."""


class Collected:
    """What a query gave, batch by batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}

    def __call__(self, frame: Any, number: int) -> None:
        self.batches[number] = frame.collect()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def started(start: Callable[[], Any]) -> Any:
    """Start a query, and wait until its sources are there.

    Spark gives the Python process in which a source is planned ten seconds to connect back, whatever the machine has to
    do, and tries it once. A query that ended for that has read nothing, and is started again at its checkpoint.
    """
    for _ in range(_MOST_STARTS):
        query = start()
        deadline = time.monotonic() + SECONDS
        while query.isActive and query.status["message"].startswith(_NO_SOURCES_YET):
            assert time.monotonic() < deadline, "the query has no sources in time"
            threading.Event().wait(0.05)
        if "connect back" not in str(query.exception()):
            return query
    raise AssertionError(f"Spark started {_MOST_STARTS} Python processes, and none connected back in time")


@contextmanager
def running(frame: Any, sink: Callable[[Any, int], None], checkpoint: Path, **trigger: Any) -> Iterator[Any]:
    """A running query, stopped afterwards."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = started((writer.trigger(**trigger) if trigger else writer).start)
    try:
        yield query
    finally:
        query.stop()


def run_to_end(frame: Any, sink: Callable[[Any, int], None], checkpoint: Path, **trigger: Any) -> None:
    """Run until the query ends by itself, or by its error: with the trigger AvailableNow unless another is named."""
    with running(frame, sink, checkpoint, **(trigger or {"availableNow": True})) as query:
        assert query.awaitTermination(SECONDS), "the query does not end"


def wait_until(condition: Callable[[], bool], query: Any = None, seconds: float = SECONDS) -> None:
    """Wait for something; an error of the query is raised at once."""
    deadline = time.monotonic() + seconds
    while not condition():
        if query is not None and query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.05)


def python_workers(jvm: int) -> list[int]:
    """The Python processes under a JVM: the planner of the source, the daemon and its workers."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, level = [], [jvm]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


@contextmanager
def most_in_driver(spark: Any, size: str) -> Iterator[None]:
    """Let no job bring more than this to the driver; Spark looks at it anew for every stage."""
    conf, name = spark.sparkContext._jsc.sc().conf(), "spark.driver.maxResultSize"
    before = conf.get(name, "1g")
    conf.set(name, size)
    try:
        yield
    finally:
        conf.set(name, before)
