"""The rows of small batches, from the planner straight to the driver of a session on one machine.

A Spark job that does nothing but bring a few rows to the driver takes longer than the work on them. The planner of a
stream has the rows of a small batch anyway, and on one machine it can leave them in a file that the driver reads. The
plan of the batch still has its range: whoever runs it, and a driver that does not find its rows, reads that range.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.spark.checkpoint import LocalFiles
from tailrace.spark.jvm import count_input_rows

OPTION: Final = "handOverFolder"
_FILE: Final = "batch.arrow"
_START: Final = b"tailrace.start"
_END: Final = b"tailrace.end"
_TOO_LARGE: Final = "spark.driver.maxResultSize"


def collected(rows: DataFrame) -> pa.Table | None:
    """Bring rows to the driver; None when they are more than Spark lets it take, however few they are."""
    try:
        return rows.toArrow()
    except Exception as error:
        if _TOO_LARGE not in str(error):
            raise
        return None


def hand_over(folder: str, start: Mapping[str, Any], end: Mapping[str, Any], rows: Iterable[pa.RecordBatch]) -> bool:
    """Leave the rows of the range (start, end] for the driver, in place of those of the batch before.

    Tells whether it could: a folder may be gone or full, and then the rows go their usual way.
    """
    range_ = {_START: json.dumps(start).encode(), _END: json.dumps(end).encode()}
    table = pa.Table.from_batches(rows).replace_schema_metadata(range_)
    made = Path(folder, f".{_FILE}.{os.getpid()}")
    try:
        with pa.OSFile(str(made), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        made.replace(Path(folder, _FILE))
    except OSError:
        made.unlink(missing_ok=True)
        return False
    return True


class HandOver:
    """The driver's side, of one job: where the planner leaves rows, and whose they have to be."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._location = ""
        self._query: StreamingQuery | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[HandOver], tuple[()]]:
        """Spark Connect takes a job to its server: no planner leaves rows for that one, so it has none of this."""
        return HandOver, ()

    def options(self) -> dict[str, str]:
        """Give the options of a source whose rows the driver takes."""
        with self._lock:
            if self._folder is None:  # others may not look into it
                self._folder = tempfile.TemporaryDirectory(prefix="tailrace-rows-", ignore_cleanup_errors=True)
            return {OPTION: self._folder.name}

    def expect(self, checkpoint: str) -> None:
        """Say where the query that begins now has its checkpoint; until it runs, Spark reads its batches."""
        self._query, self._location = None, checkpoint if _is_local(checkpoint) else ""

    def follow(self, query: StreamingQuery) -> None:
        """Take the rows of a query that runs."""
        self._query = query

    def take(self, batch: int) -> pa.Table | None:
        """Give the rows of a batch, whose range is the one in the checkpoint; None when they are not there."""
        if self._folder is None or self._query is None or not self._location:
            return None
        path = Path(self._folder.name, _FILE)
        try:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                table = reader.read_all()
        except (OSError, pa.ArrowInvalid):
            return None
        path.unlink(missing_ok=True)
        range_ = table.schema.metadata or {}
        if json.loads(range_.get(_END, b"0")) != self._range_end(batch):
            return None
        if batch > 0 and json.loads(range_.get(_START, b"0")) != self._range_end(batch - 1):
            return None
        count_input_rows(self._query, table.num_rows)
        return table.replace_schema_metadata(None)

    def _range_end(self, batch: int) -> Any:
        text = LocalFiles().read(f"{self._location.rstrip('/')}/offsets/{batch}")
        return None if text is None else json.loads(text.strip().splitlines()[-1])


def _is_local(location: str) -> bool:
    return urlsplit(location).scheme in ("", "file")
