"""What a table in Delta Lake says about itself, in the words that the tables of Iceberg have; no Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tailrace.warehouse.columns.drift import DRIFT_PROPERTY, read_drift
from tailrace.warehouse.tables.names import TableKind
from tailrace.warehouse.tables.states import KIND_PROPERTY, NAMESPACE_PROPERTY, Column, Snapshot, TableState

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
