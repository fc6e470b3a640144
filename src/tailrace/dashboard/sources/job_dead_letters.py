"""Dead letters of the Spark jobs: the Parquet files that a features job leaves, and the warehouse's table of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tailrace.dashboard.answers import shown_folder
from tailrace.dashboard.values import DeadLetter, DeadLetters
from tailrace.errors import EventUnconvertible, MissingExtra
from tailrace.warehouse.tables.names import DEAD_LETTERS_TABLE

NEWEST = 50
_CODE = re.compile(r"([a-z][a-z0-9-]*)(?:: (.*))?", re.DOTALL)
Row = dict[str, Any]


class FeatureDeadLetters:
    """Reads `folder/definition/batch=N/*.parquet`: records of a topic that no event could be made of."""

    name = "dead letters of features"

    def __init__(self, folder: str) -> None:
        self._location = shown_folder(folder)
        self._files = ParquetFiles(folder, "*/batch=*/*.parquet")

    def poll(self) -> DeadLetters:
        """Count the records, and read the newest."""
        if not self._files.are_here:
            return DeadLetters("features", self._location, None, [])
        newest = [_of_features(row, path) for path, row in self._files.newest()]
        return DeadLetters("features", self._location, self._files.rows(), newest)

    def close(self) -> None:
        """Nothing stays open between polls."""


class WarehouseDeadLetters:
    """Reads the newest data files of the table; how many rows it has is in its metadata, which others read anyway."""

    name = "dead letters of tables"

    def __init__(self, folder: str, rows: Callable[[], int | None]) -> None:
        self._location = f"table {'.'.join(DEAD_LETTERS_TABLE)}"
        self._files = ParquetFiles(folder, f"{'/'.join(DEAD_LETTERS_TABLE)}/**/*.parquet")
        self._rows = rows

    def poll(self) -> DeadLetters:
        """Read the newest rows; a row that a compaction wrote again is one letter still."""
        if not self._files.are_here:
            return DeadLetters("warehouse", self._location, None, [])
        total = self._rows()
        found = {_identity(row): _of_table(row) for _, row in self._files.newest()} if total else {}
        newest = sorted(found.values(), key=lambda one: -(one.at or 0.0))
        return DeadLetters("warehouse", self._location, total, newest[:NEWEST])

    def close(self) -> None:
        """Nothing stays open between polls."""


class ParquetFiles:
    """The Parquet files of a local folder, each opened once."""

    def __init__(self, folder: str, pattern: str) -> None:
        self.are_here = "://" not in folder.removeprefix("file://")
        """Whether the folder is one of this machine's: others are not polled."""
        self._folder = Path(folder.removeprefix("file://"))
        self._pattern = pattern
        self._counts: dict[tuple[Path, float], int] = {}
        self._read: tuple[list[tuple[Path, float]], list[tuple[Path, Row]]] = ([], [])

    def rows(self) -> int:
        """Count the rows of all files, from their footers."""
        files = self._listed()
        known = {file: self._counts.get(file) for file in files}
        self._counts = {file: _count(file[0]) if count is None else count for file, count in known.items()}
        return sum(self._counts.values())

    def newest(self) -> list[tuple[Path, Row]]:
        """Give the rows of the newest files, at least `NEWEST` of them where there are so many."""
        files = self._listed()
        if files != self._read[0]:
            self._read = files, list(self._newest_rows(files))
        return self._read[1]

    def _newest_rows(self, files: list[tuple[Path, float]]) -> Iterator[tuple[Path, Row]]:
        given = 0
        for path, _ in files:
            rows = _parquet().read_table(path).to_pylist()
            yield from ((path, row) for row in rows)
            given += len(rows)
            if given >= NEWEST:
                return

    def _listed(self) -> list[tuple[Path, float]]:
        """Give the files with their times, the newest first; those that Spark has not finished have other names."""
        found = []
        for path in self._folder.glob(self._pattern):
            if {"_temporary", "_delta_log"} & set(path.parts):
                continue
            try:
                found.append((path, path.stat().st_mtime))
            except FileNotFoundError:
                continue
        return sorted(found, key=lambda file: -file[1])


def _parquet() -> Any:
    """Import the reader when there is something to read: a dashboard without Spark jobs needs none."""
    if find_spec("pyarrow") is None:
        raise MissingExtra(
            "the dead letters of Spark jobs are Parquet files, and the Python package pyarrow is missing"
        )
    import pyarrow.parquet as parquet

    return parquet


def _count(path: Path) -> int:
    return int(_parquet().read_metadata(path).num_rows)


def _of_features(row: Row, path: Path) -> DeadLetter:
    definition, batch = path.parent.parent.name, path.parent.name.removeprefix("batch=")
    cause, message = _split(row["cause"])
    return DeadLetter(
        at=path.stat().st_mtime,
        cause=cause,
        message=f"{message} (features {definition}, batch {batch})",
        namespace="",
        operation="",
        token="",
        bytes=len(row["bad_record"] or b""),
    )


def _of_table(row: Row) -> DeadLetter:
    cause, message = _split(row["cause"])
    return DeadLetter(
        at=row["at"].replace(tzinfo=row["at"].tzinfo or UTC).timestamp(),
        cause=cause,
        message=f"{message} (batch {row['batch']})".strip(),
        namespace=row["namespace"] or "",
        operation="",
        token=row["token"] or "",
        bytes=len(row["record"] or b""),
    )


def _identity(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("at", "query", "batch", "namespace", "token", "cause", "record"))


def _split(text: str) -> tuple[str, str]:
    """Take a cause apart: `code`, `code: what`, or the message of what could not be read."""
    match = _CODE.fullmatch(text)
    return (match[1], match[2] or "") if match else (EventUnconvertible.code, text)
