"""`tailrace sql`: ask the warehouse's tables in Spark SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.session import session
from tailrace.settings import Settings


def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL, such as 'SELECT count(*) FROM shop.orders'.")],
    limit: Annotated[int, typer.Option(help="Show at most this many rows.", min=1)] = 100,
    folder: Annotated[str | None, typer.Option(help="Folder of the tables (warehouse.folder).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a row.")] = False,
) -> None:
    """Ask the warehouse's tables in Spark SQL; mirrors are called db.collection, histories db.collection_history."""
    settings = session.settings(warehouse__folder=folder, spark__log_level="error")
    console = Console()
    with console.status("Spark starts and asks the tables ..."):  # nothing in a pipe
        columns, rows = _answer(query, limit, settings)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row.asDict(recursive=True), default=str))
        return
    _show(console, columns, [[_shown(value) for value in row] for row in rows])


def _answer(query: str, limit: int, settings: Settings) -> tuple[list[str], list[Any]]:
    """Give the names of the columns, and the rows."""
    from tailrace.cli.spark_session import spark_session

    with spark_session(settings.spark, is_quiet=not session.debug) as spark:
        from pyspark.errors import AnalysisException, ParseException

        from tailrace.warehouse.lake import configure_catalog

        configure_catalog(spark, settings.warehouse)
        spark.catalog.setCurrentCatalog(settings.warehouse.catalog)
        try:
            frame = spark.sql(query)
            return frame.columns, frame.take(limit)
        except (AnalysisException, ParseException) as error:
            raise typer.BadParameter(str(error.getMessage() or error).strip().splitlines()[0]) from None


def _show(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table where it fits; else one value a line, since columns of three letters help nobody."""
    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    if _width(columns, rows) <= console.width:
        console.print(table)
        return
    widest = max(map(len, columns))
    for number, row in enumerate(rows, 1):
        console.print(f"row {number}", style="bold")
        for column, value in zip(columns, row, strict=True):
            console.print(f"  {column:{widest}}  {value}", soft_wrap=True, highlight=False, markup=False)


def _shown(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return "" if value is None else str(value)


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Give how wide a table of these would be, with two spaces between the columns."""
    return sum(max(map(len, column)) + 2 for column in zip(columns, *rows, strict=True))
