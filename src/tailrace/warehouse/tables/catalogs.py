"""The tables of any catalog, without Spark: a folder is read as it is, every other catalog by PyIceberg.

The settings have the properties of Iceberg's Java catalogs, because Spark takes those. Most of them are PyIceberg's as
well; here is what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tailrace.errors import FileUnusable, MissingExtra, SettingsError
from tailrace.object_store import file_properties, is_s3, uses_s3a
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.tables.data import DeltaData, IcebergData, TableData, refuse_variants
from tailrace.warehouse.tables.folders import delta_path, read_tables, table_names
from tailrace.warehouse.tables.states import TableState, newest_metadata_file, table_state

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_SECONDS_TO_CONNECT: Final = 10
_TYPES: Final = {"jdbc": "sql", "rest": "rest", "hive": "hive", "glue": "glue", "bigquery": "bigquery"}
"""Iceberg's types of catalogs, and PyIceberg's."""
_CLASSES: Final = {
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
    "org.apache.iceberg.rest.RESTCatalog": "rest",
}
_DATABASES: Final = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite", "mysql": "mysql+pymysql"}
"""Databases as JDBC names them, and as SQLAlchemy does."""
_JAVA_ONLY: Final = {"catalog-impl", "io-impl", "class", "type", "cache-enabled"}
_HINT: Final = (
    "Spark has this catalog: `tailrace warehouse tables` lists its tables, `tailrace sql --engine spark` asks them."
)


class TableReader(Protocol):
    """Gives the tables of one catalog."""

    def read(self) -> list[TableState]:
        """Read what every table of ours says of itself."""

    def names(self) -> list[tuple[str, str]]:
        """Give database and name of every table, whoever made it."""

    def load(self, database: str, table: str, as_of: datetime | None = None) -> TableData:
        """Give a table that is there, as it was at a time."""

    def close(self) -> None:
        """Give connections back; the next read opens them again."""


def open_tables(settings: WarehouseSettings, spark_config: Mapping[str, str] | None = None) -> TableReader:
    """Give the reader of the catalog that the settings describe; refuse one that only Spark can read.

    `spark_config` is Spark's own configuration, which says how a bucket is reached.
    """
    config = settings.catalog_config
    kind = config.get("type") or _CLASSES.get(config.get("catalog-impl", ""), config.get("catalog-impl", "hadoop"))
    if kind == "hadoop":
        folder = config.get("warehouse", settings.folder)
        if is_s3(folder) and settings.format == "iceberg":
            from tailrace.warehouse.tables.object_folder import ObjectFolder

            return ObjectFolder(folder, file_properties(folder, spark_config or {}, config))
        if "://" in folder.removeprefix("file://"):
            raise SettingsError(f"tables in a folder at {folder.partition('://')[0]} cannot be read here", hint=_HINT)
        return _Folder(folder)
    if kind not in _TYPES:
        raise SettingsError(f"tables of a catalog of the type {kind} cannot be read here", hint=_HINT)
    files = file_properties(config["warehouse"], spark_config or {}, config) if uses_s3a(config) else {}
    return _OtherCatalog(settings.catalog, {**files, **catalog_properties(kind, config)})


class _Folder:
    """A folder catalog on this machine, of which nothing stays open."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def read(self) -> list[TableState]:
        return read_tables(self._folder)

    def names(self) -> list[tuple[str, str]]:
        return table_names(self._folder)

    def load(self, database: str, table: str, as_of: datetime | None = None) -> TableData:
        name = f"{database}.{table}"
        known = next((one for one in read_tables(self._folder) if one.name == name), None)
        refuse_variants(name, {} if known is None else known.properties)
        path = delta_path(self._folder, database, table)
        if path is not None:
            return DeltaData(path, name, as_of)
        file = newest_metadata_file(self._folder, database, table)
        if file is None:
            raise FileUnusable(f"the table {name} is no longer in {self._folder}")
        return IcebergData(_static_table(file), name, as_of)

    def close(self) -> None:
        pass


class _OtherCatalog:
    """A catalog that PyIceberg reads."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._name = name
        self._properties = properties
        self._catalog: Catalog | None = None

    def read(self) -> list[TableState]:
        catalog = self._opened()
        states = (_state_of(catalog, name) for name in sorted(_names(catalog)))
        return [state for state in states if state is not None]

    def names(self) -> list[tuple[str, str]]:
        return sorted((".".join(name[:-1]), name[-1]) for name in _names(self._opened()))

    def load(self, database: str, table: str, as_of: datetime | None = None) -> TableData:
        loaded = self._opened().load_table((*database.split("."), table))
        refuse_variants(f"{database}.{table}", loaded.properties)
        return IcebergData(loaded, f"{database}.{table}", as_of)

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _opened(self) -> Catalog:
        if self._catalog is None:
            self._catalog = _loaded(self._name, self._properties)
        return self._catalog


def catalog_properties(kind: str, config: Mapping[str, str]) -> dict[str, str]:
    """Translate the properties of a Java catalog into PyIceberg's."""
    shared = {name: value for name, value in config.items() if name not in _JAVA_ONLY and not name.startswith("jdbc.")}
    translated = {**shared, "type": _TYPES[kind]}
    if kind == "jdbc":
        # Who only looks makes no tables, and does not change those that are there.
        translated |= {"uri": _database_url(config), "init_catalog_tables": "false"}
    return translated


def _database_url(config: Mapping[str, str]) -> str:
    """Give the address of a database as SQLAlchemy has it, with the user and password."""
    scheme, _, rest = config.get("uri", "").removeprefix("jdbc:").partition(":")
    if scheme not in _DATABASES:
        raise SettingsError("warehouse.catalog_config.uri is not a JDBC address of a supported database", hint=_HINT)
    if scheme == "sqlite":
        return f"sqlite:///{rest.removeprefix('file:')}"
    parts = urlsplit(f"{scheme}:{rest}")
    options = dict(parse_qsl(parts.query))
    user = config.get("jdbc.user") or options.pop("user", "")
    password = config.get("jdbc.password") or options.pop("password", "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    query = urlencode({"connect_timeout": str(_SECONDS_TO_CONNECT), **options})
    return f"{_DATABASES[scheme]}://{f'{login}@' if login else ''}{parts.netloc}{parts.path}?{query}"


def _loaded(name: str, properties: Mapping[str, str]) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog

        return load_catalog(name, **properties)
    except ImportError as error:
        hint = "Install it with: pip install 'tailrace[iceberg]'"
        raise MissingExtra(f"tables of this catalog need the Python package {error.name}", hint=hint) from None


def _static_table(file: Path) -> Table:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(str(file.absolute()))


def _names(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    for namespace in catalog.list_namespaces():
        yield from catalog.list_tables(namespace)


def _state_of(catalog: Catalog, name: tuple[str, ...]) -> TableState | None:
    """Give the state of a table; None when it is not one of ours, or was dropped just now."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        metadata: dict[str, Any] = catalog.load_table(name).metadata.model_dump(mode="json")
    except NoSuchTableError:
        return None
    return table_state(".".join(name), metadata)
