"""The rows of one table as Arrow, without Spark: by PyIceberg, or by the Python package `deltalake`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.errors import SqlRefused
from tailrace.extras import missing_extra
from tailrace.warehouse.tables.delta_log import commits, delta_columns
from tailrace.warehouse.tables.states import Column

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

_HINT = "warehouse.keep_hours says how long snapshots are kept; the history table tells the past of every document."


_VARIANTS = "Ask with `tailrace sql --engine spark`: variant_get(document, '$.field', 'double')."


def refuse_variants(name: str, properties: Mapping[str, str]) -> None:
    """Refuse a table with the type VARIANT, which none of the readers here knows."""
    if properties.get("tailrace.contract") == "variant":
        raise SqlRefused(f"{name} has the contract variant, whose type cannot be read without Spark", hint=_VARIANTS)


class TableData(Protocol):
    """A table at one moment."""

    def columns(self) -> list[Column]:
        """Give its columns."""

    def read(self, names: Sequence[str], *, is_empty: bool = False) -> pa.RecordBatchReader:
        """Read columns of all rows, or of none, as they are asked for."""


class IcebergData:
    """A table that PyIceberg has loaded."""

    def __init__(self, table: Table, name: str, as_of: datetime | None) -> None:
        self._table = table
        self._snapshot = None if as_of is None else _snapshot_at(table, as_of, name)

    def columns(self) -> list[Column]:
        """Give its columns, of the snapshot that is read."""
        table, snapshot = self._table, self._snapshot
        schema = table.schema() if snapshot is None else table.scan(snapshot_id=snapshot).projection()
        return [Column(field.name, str(field.field_type)) for field in schema.fields]

    def read(self, names: Sequence[str], *, is_empty: bool = False) -> pa.RecordBatchReader:
        """Read columns of all rows, or of none."""
        from pyiceberg.expressions import AlwaysFalse, AlwaysTrue

        rows = AlwaysFalse() if is_empty else AlwaysTrue()
        scan = self._table.scan(row_filter=rows, selected_fields=tuple(names), snapshot_id=self._snapshot)
        return scan.to_arrow_batch_reader()


class DeltaData:
    """A Delta table in a folder of this machine."""

    def __init__(self, path: Path, name: str, as_of: datetime | None) -> None:
        try:
            from deltalake import DeltaTable
        except ModuleNotFoundError as error:
            raise missing_extra(error, "SQL over Delta tables without Spark") from None
        version = None if as_of is None else _version_at(path, as_of, name)
        self._table: Any = DeltaTable(str(path.absolute()), version=version)
        if version is not None:
            self._refuse_removed_files(path, name)

    def columns(self) -> list[Column]:
        """Give its columns, of the version that is read."""
        return delta_columns(json.loads(self._table.schema().to_json()))

    def read(self, names: Sequence[str], *, is_empty: bool = False) -> pa.RecordBatchReader:
        """Read columns of all rows, or of none; its own engine is the one that knows deletion vectors."""
        import pyarrow as pa
        from deltalake import QueryBuilder

        chosen = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        query = f"SELECT {chosen} FROM data{' WHERE false' if is_empty else ''}"
        return pa.RecordBatchReader.from_stream(QueryBuilder().register("data", self._table).execute(query))

    def _refuse_removed_files(self, path: Path, name: str) -> None:
        """The log reaches further back than the files that `expire` has left."""
        files = (Path(uri.removeprefix("file://")) for uri in self._table.file_uris())
        if not all(file.exists() for file in files):
            raise SqlRefused(f"files of {name} at that time are removed", hint=_HINT)


def _snapshot_at(table: Table, as_of: datetime, name: str) -> int:
    snapshot = table.snapshot_as_of_timestamp(round(as_of.timestamp() * 1000))
    if snapshot is not None:
        return int(snapshot.snapshot_id)
    raise _too_early(name, [entry.timestamp_ms for entry in table.history()], as_of)


def _version_at(path: Path, as_of: datetime, name: str) -> int:
    """Give the newest version that is not newer than a time."""
    known = commits(path)
    milliseconds = round(as_of.timestamp() * 1000)
    for commit in known:
        if commit["timestamp"] <= milliseconds:
            return int(commit["version"])
    raise _too_early(name, [commit["timestamp"] for commit in known], as_of)


def _too_early(name: str, times: Sequence[int], as_of: datetime) -> SqlRefused:
    since = f"begins at {datetime.fromtimestamp(min(times) / 1000, UTC).isoformat()}" if times else "has no snapshot"
    return SqlRefused(f"{name} {since}, which is after {as_of.astimezone(UTC).isoformat()}", hint=_HINT)


def keep_null_lists() -> None:
    """Let PyIceberg in this process give null for a list that is null; calling it again changes nothing.

    PyIceberg 0.12 gives `[]` for a null list of structs: its projection builds the list anew from offsets and values,
    and leaves the validity out. It has no door for another projection, so its one method is wrapped, here and nowhere
    else. A release that keeps the nulls is left as it is, and so is one in which the class has moved.
    """
    from pyiceberg.io import pyarrow as arrow_io

    visitor: Any = getattr(arrow_io, "ArrowProjectionVisitor", None)
    projected = getattr(visitor, "list", None)
    if projected is None or hasattr(projected, "__wrapped__"):
        return

    @wraps(projected)
    def with_nulls(self: Any, list_type: Any, list_array: Any, value_array: Any) -> Any:
        result = projected(self, list_type, list_array, value_array)
        return result if result is None or result.null_count == list_array.null_count else masked(result, list_array)

    visitor.list = with_nulls


def masked(lists: Any, like: Any) -> Any:
    """Give lists that are null where those of another array of the same length are."""
    import pyarrow.compute as pc

    offsets = pc.add(lists.offsets, 0)  # a copy: a mask needs offsets that are no slice of others
    return type(lists).from_arrays(offsets, lists.values, type=lists.type, mask=like.is_null())
