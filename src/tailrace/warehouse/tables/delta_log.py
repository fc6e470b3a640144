"""What a Delta table says about itself: its log, read without Spark, in the words that Iceberg's tables have.

Every commit is a file of JSON lines with its number for a name. Every few commits Delta writes a checkpoint, a Parquet
file with all that holds until then, so a reader begins with the newest of these. A log that Spark has read is
understood by the same code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tailrace.extras import missing_extra
from tailrace.warehouse.columns.evolution import DRIFT_PROPERTY, read_drift
from tailrace.warehouse.tables.names import TableKind
from tailrace.warehouse.tables.states import (
    KIND_PROPERTY,
    NAMESPACE_PROPERTY,
    SNAPSHOTS_SHOWN,
    Column,
    Snapshot,
    TableState,
)

_OPERATIONS: Final[Mapping[str, tuple[str, Sequence[str], Sequence[str]]]] = {
    "WRITE": ("append", ["numOutputRows"], []),
    "MERGE": (
        "overwrite",
        ["numTargetRowsInserted", "numTargetRowsUpdated"],
        ["numTargetRowsDeleted", "numTargetRowsUpdated"],
    ),
    "UPDATE": ("overwrite", ["numUpdatedRows"], ["numUpdatedRows"]),
    "DELETE": ("delete", [], ["numDeletedRows"]),
    "OPTIMIZE": ("replace", [], []),
    "REPLACE TABLE AS SELECT": ("overwrite", ["numOutputRows"], []),
}
"""Delta's operations that change files: their names in Iceberg, and which metrics count rows that come and go."""
_TYPES: Final = {"integer": "int", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
LOG_FOLDER: Final = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.\d+\.\d+)?\.parquet")
Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """What the log of a table says, whoever read it."""

    properties: Mapping[str, str]
    schema: Mapping[str, Any]
    """As Delta's protocol has it."""
    rows: int
    files: int
    bytes: int
    history: Sequence[Mapping[str, Any]]
    """The newest commits, the newest first."""


def delta_state(name: str, log: Log) -> TableState | None:
    """Understand the log of a table; None when it is not one of ours."""
    properties = log.properties
    if properties.get(KIND_PROPERTY) not in set(TableKind):
        return None
    return TableState(
        name=name,
        kind=TableKind(properties[KIND_PROPERTY]),
        namespace=properties.get(NAMESPACE_PROPERTY, ""),
        rows=log.rows,
        files=log.files,
        bytes=log.bytes,
        snapshots=[_snapshot(one) for one in reversed(log.history) if one.get("operation") in _OPERATIONS],
        columns=delta_columns(log.schema),
        drift=read_drift(properties.get(DRIFT_PROPERTY)),
        properties=dict(properties),
    )


def delta_columns(schema: Mapping[str, Any]) -> list[Column]:
    """Give the columns of a schema, as Delta's protocol has it."""
    return [Column(field["name"], _type_text(field["type"])) for field in schema["fields"]]


def _snapshot(commit: Mapping[str, Any]) -> Snapshot:
    operation, added, deleted = _OPERATIONS[commit["operation"]]
    metrics = commit.get("operationMetrics") or {}
    return Snapshot(
        id=int(commit["version"]),
        at=datetime.fromtimestamp(commit["timestamp"] / 1000, UTC),
        operation=operation,
        added_rows=sum(int(metrics.get(name, 0)) for name in added),
        deleted_rows=sum(int(metrics.get(name, 0)) for name in deleted),
        properties=_job_properties(commit.get("userMetadata")),
    )


def _job_properties(text: str | None) -> dict[str, str]:
    """Give what the job said about a commit; others may have said something else."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {key: value for key, value in found.items() if key.startswith("tailrace.")} if type(found) is dict else {}


def _type_text(kind: Any) -> str:
    """Give a type in Iceberg's words: `struct<a: int, b: list<string>>`."""
    if isinstance(kind, str):
        return _TYPES.get(kind, kind)
    if kind["type"] == "struct":
        fields = (f"{one['name']}: {_type_text(one['type'])}" for one in kind["fields"])
        return f"struct<{', '.join(fields)}>"
    if kind["type"] == "array":
        return f"list<{_type_text(kind['elementType'])}>"
    return f"map<{_type_text(kind['keyType'])}, {_type_text(kind['valueType'])}>"


def read_log(table: Path) -> Log | None:
    """Read what a table is now; None when it is no table, or vanishes while it is read."""
    try:
        return _State.of(table / LOG_FOLDER).log()
    except FileNotFoundError:
        return None


def commits(table: Path) -> list[dict[str, Any]]:
    """Give what the log says of each commit that it still has, the newest first."""
    return [_commit_info(path, version) for version, path in reversed(_numbered(table / LOG_FOLDER, _COMMIT))]


class _State:
    """What holds after all actions of a log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metadata: Action = {}
        self._files: dict[tuple[str, str | None], tuple[int, int]] = {}
        """Rows and bytes of each file, by its path and its deletion vector."""

    @classmethod
    def of(cls, folder: Path) -> _State:
        state = cls(folder)
        checkpoints = _numbered(folder, _CHECKPOINT)
        newest = checkpoints[-1][0] if checkpoints else -1
        for version, path in checkpoints:
            if version == newest:
                state._apply(_checkpointed(path))
        for version, path in _numbered(folder, _COMMIT):
            if version > newest:
                state._apply(json.loads(line) for line in path.read_text().splitlines() if line)
        return state

    def log(self) -> Log | None:
        if not self._metadata:
            return None
        newest = _numbered(self._folder, _COMMIT)[-SNAPSHOTS_SHOWN:]
        return Log(
            properties=dict(self._metadata.get("configuration") or {}),
            schema=json.loads(self._metadata["schemaString"]),
            rows=sum(rows for rows, _ in self._files.values()),
            files=len(self._files),
            bytes=sum(size for _, size in self._files.values()),
            history=[_commit_info(path, version) for version, path in reversed(newest)],
        )

    def _apply(self, actions: Iterator[Action]) -> None:
        for action in actions:
            if (metadata := action.get("metaData")) is not None:
                self._metadata = metadata
            if (removed := action.get("remove")) is not None:
                self._files.pop(_identity(removed), None)
            if (added := action.get("add")) is not None:
                self._files[_identity(added)] = _rows_and_bytes(added)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Give the files of a kind with their numbers, in their order."""
    return sorted((int(match[1]), path) for path in folder.iterdir() if (match := pattern.fullmatch(path.name)))


def _checkpointed(path: Path) -> Iterator[Action]:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError as error:
        raise missing_extra(error, "the log of a Delta table") from None
    for row in parquet.read_table(path, columns=["metaData", "add"]).to_pylist():
        if row["metaData"] is not None:
            row["metaData"]["configuration"] = dict(row["metaData"]["configuration"] or ())
        yield row


def _identity(action: Action) -> tuple[str, str | None]:
    """Give what tells one version of a file from another: a new deletion vector makes it another file."""
    vector = action.get("deletionVector")
    return action["path"], None if vector is None else f"{vector['storageType']}{vector['pathOrInlineDv']}"


def _rows_and_bytes(added: Action) -> tuple[int, int]:
    deleted = (added.get("deletionVector") or {}).get("cardinality", 0)
    return json.loads(added.get("stats") or "{}").get("numRecords", 0) - deleted, added["size"]


def _commit_info(path: Path, version: int) -> dict[str, Any]:
    """Give what a commit says of itself; it stands in one of the first lines."""
    with path.open() as lines:
        for line in lines:
            if line.startswith('{"commitInfo"'):
                info = json.loads(line)["commitInfo"]
                return {**info, "version": version, "timestamp": info.get("inCommitTimestamp", info["timestamp"])}
    return {"version": version, "timestamp": round(path.stat().st_mtime * 1000), "operation": ""}
