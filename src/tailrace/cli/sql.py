"""`tailrace sql`: ask the warehouse's tables, in this process or in Spark SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

from tailrace.cli.answers import print_csv, print_json, print_rows
from tailrace.cli.flags import FOLDER, with_settings
from tailrace.cli.session import session
from tailrace.settings import Settings

_NAME = re.compile(r'\s*(?:[\w$]+|"[^"]+"|`[^`]+`)(?:\.(?:[\w$]+|"[^"]+"|`[^`]+`)){1,2}\s*')
_AGO = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Engine(StrEnum):
    """Who answers."""

    DUCKDB = "duckdb"
    SPARK = "spark"


@with_settings(FOLDER, fixed={"spark.log_level": "error"})
def sql(
    settings: Settings,
    query: Annotated[str, typer.Argument(help="A query, such as 'SELECT count(*) FROM shop.orders'.")],
    limit: Annotated[int, typer.Option(help="Print at most this many rows; 0 means all.", min=0)] = 100,
    as_of: Annotated[str | None, typer.Option(help="The tables as of a time: ISO 8601 (UTC), or 10m, 2h ago.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    describe: Annotated[
        bool, typer.Option("--describe", help="Print columns and types of a table or a query.")
    ] = False,
    engine: Annotated[
        Engine, typer.Option(help="Query engine; Spark has its own SQL dialect and takes a minute to start.")
    ] = (Engine.DUCKDB),
) -> None:
    """Query the tables: mirrors are named db.collection, histories db.collection_history.

    By default DuckDB runs the query in this process, read-only. --engine spark starts Spark, which can also write.
    """
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    moment = None if as_of is None else parse_moment(as_of)
    if describe:
        query = (
            f"DESCRIBE {'TABLE ' * (engine is Engine.SPARK)}{query}" if _NAME.fullmatch(query) else f"DESCRIBE {query}"
        )
    if engine is Engine.SPARK:
        _ask_spark(settings, query, limit, moment, as_json=as_json, as_csv=as_csv)
        return
    from tailrace.warehouse.query import ask

    with ask(query, settings.warehouse, moment, spark_config=settings.spark.config) as answer:
        columns, rows = answer.columns, answer.rows
        if describe:
            columns, rows = columns[:2], (row[:2] for row in rows)
        _print(columns, rows, limit, as_json=as_json, as_csv=as_csv)


def parse_moment(text: str) -> datetime:
    """Read a time: ISO 8601, in UTC unless it says otherwise, or how long ago."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time: write 2026-01-31T12:00, or 10m for 10 minutes ago") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _print(columns: list[str], rows: Iterable[Any], limit: int, *, as_json: bool, as_csv: bool) -> None:
    iterator = iter(rows)
    chosen = islice(iterator, limit or None)
    if as_json:
        print_json(columns, chosen)
    elif as_csv:
        print_csv(columns, chosen)
    else:
        print_rows(columns, list(chosen))
    if limit and next(iterator, None) is not None:
        typer.echo(f"these are {limit} rows, and there are more: --limit 0 prints all", err=True)


def _ask_spark(
    settings: Settings, query: str, limit: int, moment: datetime | None, *, as_json: bool, as_csv: bool
) -> None:
    if moment is not None:
        raise typer.BadParameter("Spark takes the time in the query: SELECT ... FROM shop.orders TIMESTAMP AS OF '...'")
    with Console().status("Spark starts and asks the tables ..."):  # nothing in a pipe
        columns, rows = _answered_by_spark(query, limit, settings)
    _print(columns, iter(rows), limit, as_json=as_json, as_csv=as_csv)


def _answered_by_spark(query: str, limit: int, settings: Settings) -> tuple[list[str], list[Any]]:
    """Give the names of the columns, and the rows: one more than are printed, to know whether there are more."""
    from tailrace.cli.spark_session import spark_session

    with spark_session(settings.spark, is_quiet=not session.debug, table_format=settings.warehouse.format) as spark:
        from pyspark.errors import AnalysisException, ParseException

        from tailrace.spark.stores import check_tables
        from tailrace.warehouse.lake import configure_catalog, open_lake

        check_tables(spark, settings.warehouse)
        configure_catalog(spark, settings.warehouse)
        open_lake(spark, settings.warehouse).use_names()
        try:
            frame = spark.sql(query)
            rows = frame.take(limit + 1) if limit else frame.collect()
            return frame.columns, [tuple(_without_rows(value) for value in row) for row in rows]
        except (AnalysisException, ParseException) as error:
            raise typer.BadParameter(_complaint(error)) from None


def _complaint(error: Any) -> str:
    """What Spark refuses, in one line. It takes the database of a table that is not there for a kind of file."""
    if error.getCondition() == "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY":
        return f"there is no such table in {error.getMessageParameters()['dataSourceType']}; see `warehouse tables`"
    return str(error.getMessage() or error).strip().splitlines()[0]


def _without_rows(value: Any) -> Any:
    """Give a value whose documents are dictionaries, as JSON has them; Spark has rows, which are tuples."""
    if hasattr(value, "asDict"):
        return {name: _without_rows(inner) for name, inner in value.asDict().items()}
    if isinstance(value, list):
        return [_without_rows(inner) for inner in value]
    return value
