"""What a folder of Iceberg tables says about itself, read from its metadata alone: no Spark, no data file.

A folder catalog keeps a table in `folder/database/table`, and what the table is in `metadata/vN.metadata.json`: a new
number for every commit, put in place by a rename. So a reader always finds a whole file, whatever the job is doing.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tailrace.warehouse.columns.evolution import DRIFT_PROPERTY, Drift, read_drift
from tailrace.warehouse.tables.names import TableKind

KIND_PROPERTY: Final = "tailrace.kind"
NAMESPACE_PROPERTY: Final = "tailrace.namespace"
CONTRACT_PROPERTY: Final = "tailrace.contract"
_VERSION = re.compile(r"v(\d+)(\.gz)?\.metadata\.json")
SNAPSHOTS_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit to a table."""

    id: int
    at: datetime
    operation: str
    """append, overwrite, replace (a compaction) or delete."""
    added_rows: int
    deleted_rows: int
    properties: Mapping[str, str] = field(default_factory=dict)
    """What the job said about it: the query, the batch and its range of offsets."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its type in Iceberg's words."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as its newest metadata has it."""

    name: str
    """`database.table` in the catalog."""
    kind: TableKind
    namespace: str
    """`db.collection` in MongoDB; empty for the dead letters."""
    rows: int
    files: int
    bytes: int
    snapshots: list[Snapshot]
    """The newest last; at most a hundred."""
    columns: list[Column]
    drift: list[Drift]
    properties: Mapping[str, str] = field(default_factory=dict)


def local_path(folder: str | Path) -> Path:
    """Give the path of a folder of this machine, which may be written as a URL."""
    return Path(str(folder).removeprefix("file://"))


def read_iceberg(folder: str | Path) -> list[TableState]:
    """Give the Iceberg tables of the warehouse in a local folder; an absent folder has none."""
    root = local_path(folder)
    if not root.is_dir():
        return []
    found = (_read_table(root, path) for path in sorted(_metadata_folders(root)))
    return [table for table in found if table is not None]


def _metadata_folders(root: Path) -> Iterator[Path]:
    return root.glob("*/*/metadata")


def iceberg_names(folder: str | Path) -> list[tuple[str, str]]:
    """Give database and name of every Iceberg table in a local folder, whoever made it."""
    root = local_path(folder)
    folders = (path for path in _metadata_folders(root) if _metadata_files(path))
    return sorted((path.parent.parent.name, path.parent.name) for path in folders)


def newest_metadata_file(folder: str | Path, database: str, table: str) -> Path | None:
    """Give the file that says what a table in a local folder is now; None when there is no such table."""
    metadata = local_path(folder) / database / table / "metadata"
    return next(iter(_metadata_files(metadata)), None) if metadata.is_dir() else None


def _read_table(root: Path, folder: Path) -> TableState | None:
    """Read one table; None when it is not one of ours, or vanishes while it is read."""
    metadata = _newest_metadata(folder)
    return None if metadata is None else table_state(".".join(folder.parent.relative_to(root).parts), metadata)


def table_state(name: str, metadata: Mapping[str, Any]) -> TableState | None:
    """Understand the metadata of a table, as Iceberg's specification has it; None when it is not one of ours."""
    properties = metadata.get("properties", {})
    if properties.get(KIND_PROPERTY) not in set(TableKind):
        return None
    current = metadata.get("current-snapshot-id")
    snapshots = metadata.get("snapshots", [])
    summary: Mapping[str, str] = next((one["summary"] for one in snapshots if one["snapshot-id"] == current), {})
    return TableState(
        name=name,
        kind=TableKind(properties[KIND_PROPERTY]),
        namespace=properties.get(NAMESPACE_PROPERTY, ""),
        rows=_number(summary, "total-records") - _number(summary, "total-position-deletes"),
        files=_number(summary, "total-data-files") + _number(summary, "total-delete-files"),
        bytes=_number(summary, "total-files-size"),
        snapshots=[_snapshot(one) for one in snapshots[-SNAPSHOTS_SHOWN:]],
        columns=_columns(metadata),
        drift=read_drift(properties.get(DRIFT_PROPERTY)),
        properties=properties,
    )


def _newest_metadata(folder: Path) -> dict[str, Any] | None:
    """Give the metadata with the greatest number; the next one is tried when that is removed just now."""
    for path in _metadata_files(folder):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        text = gzip.decompress(data) if ".gz." in path.name else data
        metadata: dict[str, Any] = json.loads(text)
        return metadata
    return None


def _metadata_files(folder: Path) -> list[Path]:
    """Give the files of metadata, the newest first."""
    return [folder / name for name in newest_first(path.name for path in folder.iterdir())]


def newest_first(names: Iterable[str]) -> list[str]:
    """Give those names that are of files of metadata, the newest first."""
    numbered = [(int(match[1]), name) for name in names if (match := _VERSION.fullmatch(name))]
    return [name for _, name in sorted(numbered, reverse=True)]


def _snapshot(form: Mapping[str, Any]) -> Snapshot:
    summary = form.get("summary", {})
    return Snapshot(
        id=form["snapshot-id"],
        at=datetime.fromtimestamp(form["timestamp-ms"] / 1000, UTC),
        operation=summary.get("operation", ""),
        added_rows=_number(summary, "added-records"),
        deleted_rows=_deleted_rows(summary),
        properties={key: value for key, value in summary.items() if key.startswith("tailrace.")},
    )


def _deleted_rows(summary: Mapping[str, str]) -> int:
    """Rows leave with their file, or by a deletion vector, which takes the place of the file's last one."""
    by_vectors = _number(summary, "added-position-deletes") - _number(summary, "removed-position-deletes")
    return _number(summary, "deleted-records") + max(by_vectors, 0)


def _columns(metadata: Mapping[str, Any]) -> list[Column]:
    wanted = metadata.get("current-schema-id", 0)
    fields = (one["fields"] for one in metadata.get("schemas", []) if one["schema-id"] == wanted)
    return [Column(one["name"], _type_text(one["type"])) for one in next(fields, [])]


def _type_text(kind: Any) -> str:
    """Give a type in one line: `struct<a: int, b: list<string>>`."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        fields = (f"{one['name']}: {_type_text(one['type'])}" for one in kind["fields"])
        return f"struct<{', '.join(fields)}>"
    if kind["type"] == "list":
        return f"list<{_type_text(kind['element'])}>"
    return f"map<{_type_text(kind['key'])}, {_type_text(kind['value'])}>"


def _number(summary: Mapping[str, str], key: str) -> int:
    return int(summary.get(key, 0))
