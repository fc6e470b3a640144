"""`tailrace features export` and `tailrace features try`: the features of a definition without Spark and Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace.cli.answers import print_json, print_rows
from tailrace.cli.flags import FOLDER, URI, with_settings
from tailrace.cli.sql import parse_moment
from tailrace.errors import FileUnusable, SettingsError
from tailrace.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.features import Definition
    from tailrace.features.replay import Replay

DefinitionName = Annotated[str, typer.Argument(help="A TOML file, or module:name.")]
_ROWS_PER_GROUP: Final = 10_000


@with_settings(FOLDER)
def export(
    settings: Settings,
    definition: DefinitionName,
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file to write.")],
    as_of: Annotated[
        list[str] | None, typer.Option(help="Every entity at this time: ISO 8601 (UTC), or 2h ago; repeat for several.")
    ] = None,
    spine: Annotated[
        Path | None, typer.Option(help="Parquet or CSV with entities and times (column `at`): a row for each.")
    ] = None,
) -> None:
    """Write features as of past moments, from the history tables: training data without leakage.

    An event counts from its own time on; what happened later to a document has no part in a row.
    """
    from tailrace.features import load_definition
    from tailrace.features.replay import Replay

    if (as_of is None) == (spine is None):
        raise typer.BadParameter("name the moments with --as-of, or entities and moments with --spine")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise FileUnusable(f"cannot write {output}: it is a folder, or in none", hint="Name another with --output.")
    replay = Replay(load_definition(definition))
    wanted = _moments(as_of or ()) if spine is None else _wanted(replay.definition, spine)
    with _history(settings, replay.definition) as events:
        count = _write(replay, _rows(replay, events, wanted), output)
    if replay.unknown:
        typer.echo(
            f"{replay.unknown} updates of documents that the history does not tell whole were left out", err=True
        )
    typer.echo(f"{count} rows in {output}")


@with_settings(URI)
def try_(
    settings: Settings,
    definition: DefinitionName,
    limit: Annotated[int, typer.Option(help="Read at most this many documents of each collection.", min=1)] = 100_000,
    entities: Annotated[int, typer.Option(help="Show this many entities, most documents first.", min=1)] = 10,
    at: Annotated[str | None, typer.Option(help="The moment of the windows: ISO 8601 (UTC), or 2h ago.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per entity.")] = False,
) -> None:
    """Show what the features of a definition would be, from the current documents; nothing is written."""
    from tailrace.features import load_definition
    from tailrace.features.replay import Replay

    replay = Replay(load_definition(definition))
    _read_documents(replay, settings, limit)
    moment = _ms(datetime.now(UTC) if at is None else parse_moment(at))
    chosen = sorted(replay.entities, key=lambda entity: (-replay.documents_of(entity), entity))[:entities]
    columns = ["entity", *(feature.name for feature in replay.definition.features)]
    rows = [[entity, *replay.values(entity, moment).values()] for entity in chosen]
    if as_json:
        print_json(columns, rows)
    elif rows:
        print_rows(columns, rows)
    else:
        typer.echo(f"no document of {', '.join(replay.definition.namespaces)} has an entity")


def _read_documents(replay: Replay, settings: Settings, limit: int) -> None:
    from bson.raw_bson import RawBSONDocument
    from pymongo import MongoClient

    from tailrace.policy.configured import policy_of

    policy = policy_of(settings)
    timeout = int(settings.mongodb.timeout_seconds * 1000)
    client: MongoClient[RawBSONDocument] = MongoClient(
        settings.mongodb.uri.get_secret_value(), serverSelectionTimeoutMS=timeout, document_class=RawBSONDocument
    )
    with client:
        for namespace in replay.definition.namespaces:
            database, _, name = namespace.partition(".")
            # One more than are read tells whether there are more.
            for number, document in enumerate(client[database][name].find().limit(limit + 1)):
                if number == limit:
                    typer.echo(f"{namespace} has more than {limit:,} documents: the others do not count", err=True)
                else:
                    replay.put(namespace, policy.document(namespace, bytes(document.raw)))


def _history(settings: Settings, definition: Definition) -> Any:
    """Open the events of the definition's collections, in the order of their tokens."""
    from contextlib import contextmanager

    from tailrace.warehouse.query import ask
    from tailrace.warehouse.tables.names import history_table

    def part(namespace: str) -> str:
        database, table = history_table(namespace)
        return f'SELECT token, raw FROM "{database}"."{table}"'

    @contextmanager
    def opened() -> Iterator[Iterable[bytes]]:
        union = " UNION ALL ".join(map(part, definition.namespaces))
        query = f"SELECT raw FROM ({union}) ORDER BY token"
        with ask(query, settings.warehouse, spark_config=settings.spark.config) as answer:
            yield (row[0] for row in answer.rows)

    return opened()


Wanted = tuple[int, str | None, dict[str, Any]]
"""A moment, an entity (None is all of them), and what else its row has."""


def _moments(texts: Sequence[str]) -> list[Wanted]:
    return sorted(((_ms(parse_moment(text)), None, {}) for text in texts), key=lambda one: one[0])


def _wanted(definition: Definition, spine: Path) -> list[Wanted]:
    """Read entities and moments; further columns, such as labels, go along."""
    from tailrace.features.contribution import entity_text, text_of, time_of

    table = _table(spine)
    fields = definition.sources[0].entity_fields
    columns = [name for name in fields if name in table.column_names] or ["entity"]
    if set(columns) - set(table.column_names) or "at" not in table.column_names or len(columns) not in (1, len(fields)):
        hint = f"Name the columns {', '.join(fields)} (or entity) and at."
        raise SettingsError(f"{spine} has no column for the entity or the time", hint=hint)
    wanted: list[Wanted] = []
    for row in table.to_pylist():
        at = (
            _ms(row["at"].replace(tzinfo=row["at"].tzinfo or UTC))
            if isinstance(row["at"], datetime)
            else (time_of(row["at"]))
        )
        if at is None:
            raise SettingsError(f"{row['at']!r} in {spine} is not a time", hint="Write timestamps or ISO 8601.")
        values = [row[name] for name in columns]
        entity = text_of(values[0]) if isinstance(definition.entity, str) else entity_text(values)
        if columns == ["entity"] and len(fields) > 1:
            entity = str(row["entity"])
        wanted.append((at, entity, {name: row[name] for name in table.column_names if name not in ("entity", "at")}))
    return sorted(wanted, key=lambda one: one[0])


def _table(file: Path) -> pa.Table:
    import pyarrow.csv
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(file) if file.suffix == ".parquet" else pyarrow.csv.read_csv(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read: {error}", hint="Name a Parquet or CSV file.") from None


def _rows(replay: Replay, events: Iterable[bytes], wanted: Sequence[Wanted]) -> Iterator[dict[str, Any]]:
    from tailrace.features.replay import at_moments

    for (moment, entity, rest), _ in zip(wanted, at_moments(replay, events, (one[0] for one in wanted)), strict=True):
        for each in replay.entities if entity is None else [entity]:
            at = datetime.fromtimestamp(moment / 1000, UTC)
            yield {"entity": each, "at": at, **rest, **replay.values(each, moment)}


def _write(replay: Replay, rows: Iterator[dict[str, Any]], output: Path) -> int:
    """Write rows in groups; values that are no numbers are JSON."""
    import pyarrow as pa
    import pyarrow.parquet

    count, writer = 0, None
    try:
        while some := [row for row, _ in zip(rows, range(_ROWS_PER_GROUP), strict=False)]:
            table = _typed_table(replay.definition, some)
            writer = writer or pyarrow.parquet.ParquetWriter(output, table.schema)
            writer.write_table(table.cast(writer.schema))
            count += len(some)
        if writer is None:
            writer = pyarrow.parquet.ParquetWriter(output, _typed_table(replay.definition, []).schema)
    except pa.ArrowInvalid as error:
        raise SettingsError(f"a column of the spine has no one type: {error}", hint="Write it as Parquet.") from None
    finally:
        if writer is not None:
            writer.close()
    return count


def _typed_table(definition: Definition, rows: Sequence[dict[str, Any]]) -> pa.Table:
    import orjson
    import pyarrow as pa

    from tailrace.features import Kind

    types = {Kind.COUNT: pa.int64(), Kind.DISTINCT: pa.int64(), Kind.LAST: pa.string()}
    columns = {feature.name: types.get(feature.kind, pa.float64()) for feature in definition.features}
    given = [name for name in (rows[0] if rows else ("entity", "at")) if name not in columns]
    arrays: dict[str, pa.Array] = {name: pa.array([row[name] for row in rows]) for name in given}
    if not rows:
        arrays = {"entity": pa.array([], pa.string()), "at": pa.array([], pa.timestamp("us", tz="UTC"))}
    for name, kind in columns.items():
        values = [row[name] for row in rows]
        if kind == pa.string():
            values = [None if value is None else orjson.dumps(value).decode() for value in values]
        arrays[name] = pa.array(values, kind)
    return pa.table(arrays)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
