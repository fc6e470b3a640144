"""The Iceberg tables of a folder in a bucket, without Spark: a listing finds the newest metadata, PyIceberg reads it.

Only the folders of metadata are listed, never those of the data, so a look costs a few requests for each table.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tailrace.errors import FileUnusable, SettingsError
from tailrace.extras import missing_extra
from tailrace.masking import masked
from tailrace.object_store import no_bucket, store_error
from tailrace.warehouse.tables.data import IcebergData, TableData, refuse_variants
from tailrace.warehouse.tables.delta_log import LOG_FOLDER
from tailrace.warehouse.tables.states import TableState, newest_first, table_state

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class ObjectFolder:
    """A folder catalog in a bucket; a commit puts a whole file of metadata in place, so a look finds no half of one."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        parts = urlsplit(location.rstrip("/"))
        self._location = location.rstrip("/")
        self._bucket = parts.netloc
        self._root = f"{parts.netloc}{parts.path}"
        self._scheme = parts.scheme
        self._properties = dict(properties)
        self._opened: FileSystem | None = None

    def read(self) -> list[TableState]:
        """Read what every table of ours says of itself."""
        with self._errors():
            states = [self._state(database, table) for database, table in self._tables()]
        return [state for state in states if state is not None]

    def names(self) -> list[tuple[str, str]]:
        """Give database and name of every table, whoever made it."""
        with self._errors():
            return list(self._tables())

    def load(self, database: str, table: str, as_of: datetime | None = None) -> TableData:
        """Give a table that is there, as it was at a time."""
        from pyiceberg.table import StaticTable

        name = f"{database}.{table}"
        with self._errors():
            newest = next(iter(self._metadata_files(database, table)), None)
            if newest is None:
                raise FileUnusable(f"the table {name} is no longer in {self._location}")
            loaded = StaticTable.from_metadata(f"{self._scheme}://{newest}", self._properties)
        refuse_variants(name, loaded.properties)
        return IcebergData(loaded, name, as_of)

    def close(self) -> None:
        """Give connections back."""
        self._opened = None

    def _tables(self) -> Iterator[tuple[str, str]]:
        databases = self._folders(self._root)
        if not databases and not self._has_bucket():
            raise no_bucket(self._location)
        for database in databases:
            for table in self._folders(f"{self._root}/{database}"):
                if self._metadata_files(database, table):
                    yield database, table

    def _state(self, database: str, table: str) -> TableState | None:
        """Read one table; the next file is tried when the newest one is removed just now."""
        for path in self._metadata_files(database, table):
            try:
                with self._files.open_input_stream(path, compression=None) as stream:
                    data = stream.read()
            except FileNotFoundError:
                continue
            metadata: dict[str, Any] = json.loads(gzip.decompress(data) if ".gz." in path else data)
            return table_state(f"{database}.{table}", metadata)
        return None

    def _metadata_files(self, database: str, table: str) -> list[str]:
        """Give the files of metadata, the newest first; a Delta table, which has none, is refused."""
        folder = f"{self._root}/{database}/{table}"
        found = newest_first(info.base_name for info in self._listed(f"{folder}/metadata") if info.is_file)
        if not found and self._listed(f"{folder}/{LOG_FOLDER}"):
            hint = "Set warehouse.format = delta, and ask with `tailrace sql --engine spark`."
            raise SettingsError(f"{database}.{table} is a Delta table, which is not read here from a bucket", hint=hint)
        return [f"{folder}/metadata/{name}" for name in found]

    def _folders(self, path: str) -> list[str]:
        return sorted(info.base_name for info in self._listed(path) if _is_folder(info))

    def _listed(self, path: str) -> list[Any]:
        """List one level of a folder; one that is not there is empty."""
        from pyarrow.fs import FileSelector

        return list(self._files.get_file_info(FileSelector(path, allow_not_found=True)))

    def _has_bucket(self) -> bool:
        """Whether there is such a bucket: Arrow lists one that is not there like an empty folder."""
        return _is_folder(self._files.get_file_info(self._bucket))

    @property
    def _files(self) -> FileSystem:
        """PyIceberg's own file system, so that its settings and these are the same."""
        if self._opened is None:
            try:
                from pyiceberg.io.pyarrow import PyArrowFileIO
            except ModuleNotFoundError as error:
                raise missing_extra(error, "reading tables in a bucket") from None
            self._opened = PyArrowFileIO(self._properties).fs_by_scheme(self._scheme, self._bucket)
        return self._opened

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Say what is wrong with the bucket, whatever Arrow calls it."""
        try:
            yield
        except OSError as error:
            known = store_error(str(error), self._location)
            message = f"{self._location} cannot be read: {masked(str(error))}"
            raise known or FileUnusable(message, hint="Check spark.config and warehouse.folder.") from None


def _is_folder(info: Any) -> bool:
    return str(info.type.name) == "Directory"
