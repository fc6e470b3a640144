"""SQL over the tables without Spark: `table_data` reads the columns that a query names, DuckDB answers in this process.

A query is parsed once, by DuckDB. Its syntax tree says which tables it reads and which names stand in it; only columns
of these names are read from the files, so a count over a wide table reads one narrow column. The tree may name
too many columns (a text that happens to be called like one), never too few.

DuckDB gets no access to files, to the network or to Python's variables: a query sees the tables and nothing else.
"""

from __future__ import annotations

import difflib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import ServerUnreachable, SqlRefused
from tailrace.extras import missing_extra
from tailrace.object_store import store_error
from tailrace.settings import WarehouseSettings
from tailrace.warehouse.tables.catalogs import TableReader, open_tables
from tailrace.warehouse.tables.data import TableData, keep_null_lists
from tailrace.warehouse.tables.states import Column

if TYPE_CHECKING:
    import duckdb

_ROWS_AT_ONCE: Final = 2_048
_MEMORY: Final = "2GB"
"""What DuckDB holds; tables that a query reads more than once go to the disk beyond it."""
_CONFIG: Final[dict[str, str | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "memory_limit": _MEMORY,
}
_LOCKED: Final = ("SET TimeZone = 'UTC'", "SET enable_external_access = false", "SET lock_configuration = true")
_CATALOG_LIBRARIES: Final = frozenset({"pyiceberg", "requests", "sqlalchemy", "psycopg", "sqlite3"})
_OWN_CATALOGS: Final = frozenset({"memory", "system", "temp"})
_SCALARS: Final = ("boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string")
"""Types of columns, those first that are read fastest."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query; its rows come as they are asked for."""

    columns: list[str]
    types: list[str]
    """In DuckDB's words."""
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def ask(
    query: str,
    settings: WarehouseSettings,
    as_of: datetime | None = None,
    *,
    spark_config: Mapping[str, str] | None = None,
) -> Iterator[Answer]:
    """Answer one SELECT, with all tables as they were at one moment; the answer can be read inside the block.

    `spark_config` says how a bucket is reached, where the tables are in one.
    """
    try:
        import duckdb
        import pyiceberg.table  # noqa: F401  (one extra brings both)
    except ModuleNotFoundError as error:
        raise missing_extra(error, "SQL without Spark") from None
    keep_null_lists()
    with (
        closing(open_tables(settings, spark_config)) as tables,
        tempfile.TemporaryDirectory(prefix="tailrace-sql-") as spilled,
        closing(duckdb.connect(":memory:", config={**_CONFIG, "temp_directory": spilled})) as connection,
    ):
        reads = _Reads.of(connection, query)
        try:
            with _catalog_errors():
                _provide(connection, tables, settings.catalog, reads, as_of)
            for statement in _LOCKED:
                connection.execute(statement)
            answer = connection.sql(query)
            yield Answer(answer.columns, [str(kind) for kind in answer.types], _rows(answer))
        except duckdb.Error as error:
            raise store_error(str(error)) or SqlRefused(_first_line(error), hint=_hint(error)) from None


@contextmanager
def _catalog_errors() -> Iterator[None]:
    """Say that it is the catalog that fails, whichever library tells so."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CATALOG_LIBRARIES:
            raise
        hint = "Check warehouse.catalog_config, and that the catalog runs and has tables."
        raise ServerUnreachable(f"the catalog cannot be read: {_first_line(error)}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class _Reads:
    """What a query reads, by its syntax tree."""

    tables: Counter[tuple[str, str]]
    """Database and table, and how often each stands there."""
    names: frozenset[str]
    """All texts in the tree, in lower case: every column that is read is among them."""
    reads_everything: bool
    """Whether a star, or a join by equal names, may stand for any column."""
    may_repeat: bool
    """Whether one mention of a table may be read more than once."""
    asks_for_tables: bool

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, query: str) -> _Reads:
        """Parse a query; refuse what is no single SELECT."""
        import duckdb

        try:
            statements = connection.extract_statements(query)
        except duckdb.Error as error:
            raise SqlRefused(_first_line(error), hint=_hint(error)) from None
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            hint = "Ask one SELECT, DESCRIBE, SUMMARIZE or SHOW; `--engine spark` takes all of Spark's statements."
            raise SqlRefused("this is not a single read-only query", hint=hint)
        found = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
        tree = json.loads(found[0]) if found else {"error": True}
        if tree["error"]:
            raise SqlRefused(f"the query cannot be taken apart: {tree.get('error_message')}")
        return cls._of_tree(tree["statements"])

    @classmethod
    def _of_tree(cls, tree: Any) -> _Reads:
        tables: Counter[tuple[str, str]] = Counter()
        names: set[str] = set()
        kinds: set[str] = set()
        for node in _nodes(tree):
            kind = node.get("type")
            kinds |= {str(kind), str(node.get("ref_type"))} | ({"CTE"} if node.get("cte_map", {}).get("map") else set())
            if kind == "BASE_TABLE" and node.get("schema_name"):
                tables[node["schema_name"], node["table_name"]] += 1
            names.update(text.lower() for text in _texts(node))
        # A table's own name stands for its whole row, as does its alias.
        aliases = {str(node.get("alias") or node.get("table_name")).lower() for node in _nodes(tree) if _is_table(node)}
        columns = {str(node["column_names"][-1]).lower() for node in _nodes(tree) if node.get("column_names")}
        everything = bool({"STAR", "NATURAL", "SHOW_REF", "POSITIONAL"} & kinds or aliases & columns)
        return cls(tables, frozenset(names), everything, bool({"CTE", "SHOW_REF"} & kinds), "SHOW_REF" in kinds)


def _is_table(node: dict[str, Any]) -> bool:
    return node.get("type") == "BASE_TABLE"


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for inner in tree.values():
            yield from _nodes(inner)
    elif isinstance(tree, list):
        for inner in tree:
            yield from _nodes(inner)


def _texts(node: dict[str, Any]) -> Iterator[str]:
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (text for text in value if isinstance(text, str))


def _provide(
    connection: duckdb.DuckDBPyConnection, tables: TableReader, catalog: str, reads: _Reads, as_of: datetime | None
) -> None:
    """Put the tables of a query where it looks for them: those it reads, or the names of all where it lists them."""
    if catalog not in _OWN_CATALOGS:
        connection.execute(f"ATTACH ':memory:' AS {_quoted(catalog)}")
        connection.execute(f"USE {_quoted(catalog)}")
    if reads.asks_for_tables and not reads.tables:
        for database, table in tables.names():
            _define(connection, (database, table), tables.load(database, table, as_of), reads, is_empty=True)
    for (database, table), count in reads.tables.items():
        if database.lower() == "information_schema":
            continue
        streams = count == 1 and not reads.may_repeat
        _define(connection, (database, table), _loaded(tables, database, table, as_of), reads, streams=streams)


def _define(
    connection: duckdb.DuckDBPyConnection,
    name: tuple[str, str],
    table: TableData,
    reads: _Reads,
    *,
    streams: bool = False,
    is_empty: bool = False,
) -> None:
    """Define one table: read from its files while the query runs, or, where a query reads it again, before that."""
    database, target = _quoted(name[0]), f"{_quoted(name[0])}.{_quoted(name[1])}"
    source = f"tailrace:{name[0]}.{name[1]}"
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database}")
    connection.register(source, table.read(_columns(table.columns(), reads), is_empty=is_empty))
    kind = "VIEW" if streams else "TABLE"
    connection.execute(f"CREATE {kind} {target} AS SELECT * FROM temp.main.{_quoted(source)}")
    if not streams:
        connection.unregister(source)


def _columns(columns: Sequence[Column], reads: _Reads) -> list[str]:
    """Give the columns that a query may read; one at least, since rows without columns cannot be counted."""
    if reads.reads_everything:
        return [column.name for column in columns]
    named = [column.name for column in columns if column.name.lower() in reads.names]
    if named:
        return named
    order = {kind: number for number, kind in enumerate(_SCALARS)}
    return [min(columns, key=lambda column: order.get(column.type, len(order))).name]


def _loaded(tables: TableReader, database: str, table: str, as_of: datetime | None) -> TableData:
    """Load a table whatever the case of its name, as SQL has it; tell which ones are there when it is not."""
    names = {f"{one[0]}.{one[1]}".lower(): one for one in tables.names()}
    wanted = f"{database}.{table}".lower()
    if wanted in names:
        return tables.load(*names[wanted], as_of)
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    shown = [".".join(names[name]) for name in close] or [".".join(names[name]) for name in sorted(names)[:10]]
    hint = f"Did you mean {', '.join(shown)}?" if close else f"There are: {', '.join(shown) or 'no tables'}."
    raise SqlRefused(f"there is no table {database}.{table}", hint=hint)


def _rows(answer: duckdb.DuckDBPyRelation) -> Iterator[tuple[Any, ...]]:
    for batch in answer.to_arrow_reader(_ROWS_AT_ONCE):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _hint(error: Exception) -> str:
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
    suggestion = next((line for line in lines if line.startswith(("Did you mean", "Candidate"))), "")
    return (
        suggestion
        or "Tables are called db.collection and db.collection_history; `tailrace warehouse tables` lists them."
    )
