"""The tables of a local folder, whichever format each of them has: `folder/database/table` says so itself."""

from __future__ import annotations

from pathlib import Path

from tailrace.warehouse.tables.delta_log import LOG_FOLDER, delta_state, read_log
from tailrace.warehouse.tables.states import TableState, iceberg_names, local_path, read_iceberg


def read_tables(folder: str | Path) -> list[TableState]:
    """Give every table of the warehouse in a local folder, by name; an absent folder has none."""
    return sorted([*read_iceberg(folder), *_read_delta(folder)], key=lambda table: table.name)


def table_names(folder: str | Path) -> list[tuple[str, str]]:
    """Give database and name of every table in a local folder, whoever made it."""
    return sorted([*iceberg_names(folder), *((path.parent.name, path.name) for path in _delta_tables(folder))])


def delta_path(folder: str | Path, database: str, table: str) -> Path | None:
    """Give where a Delta table in a local folder is; None when there is no such table."""
    path = local_path(folder) / database / table
    return path if (path / LOG_FOLDER).is_dir() else None


def _read_delta(folder: str | Path) -> list[TableState]:
    read = ((path, read_log(path)) for path in _delta_tables(folder))
    states = (delta_state(f"{path.parent.name}.{path.name}", log) for path, log in read if log is not None)
    return [state for state in states if state is not None]


def _delta_tables(folder: str | Path) -> list[Path]:
    return [path.parent for path in local_path(folder).glob(f"*/*/{LOG_FOLDER}")]
