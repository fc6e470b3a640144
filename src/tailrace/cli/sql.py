"""`tailrace sql`: ask the warehouse's tables in Spark SQL."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.session import session


def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL, such as 'SELECT count(*) FROM shop.orders'.")],
    limit: Annotated[int, typer.Option(help="Show at most this many rows.", min=1)] = 100,
    folder: Annotated[str | None, typer.Option(help="Folder of the tables (warehouse.folder).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a row.")] = False,
) -> None:
    """Ask the warehouse's tables in Spark SQL; mirrors are called db.collection, histories db.collection_history."""
    from tailrace.cli.spark_session import spark_session

    settings = session.settings(warehouse__folder=folder, spark__log_level="error")
    with spark_session(settings.spark) as spark:
        from pyspark.errors import AnalysisException, ParseException

        from tailrace.spark.warehouse import configure_catalog

        configure_catalog(spark, settings.warehouse)
        spark.catalog.setCurrentCatalog(settings.warehouse.catalog)
        try:
            frame = spark.sql(query)
            rows = frame.take(limit)
        except (AnalysisException, ParseException) as error:
            raise typer.BadParameter(str(error.getMessage() or error).strip().splitlines()[0]) from None
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row.asDict(recursive=True), default=str))
        return
    table = Table(*frame.columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console().print(table)
