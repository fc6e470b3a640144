"""`tailrace warehouse`: collections as Iceberg tables, from topics or directly from MongoDB."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tailrace.cli.session import session
from tailrace.cli.units import size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.settings import Settings, WarehouseSettings
    from tailrace.warehouse import TableState
    from tailrace.warehouse.lake import Lake

app = typer.Typer(help="Keep collections as Iceberg tables: a history and a mirror each.", no_args_is_help=True)

Namespaces = Annotated[list[str] | None, typer.Argument(help="db.collection, db or /pattern/; none is all.")]
Topics = Annotated[str | None, typer.Option(help="Topics, with commas, or /pattern/; none reads MongoDB.")]
Format = Annotated[str, typer.Option(help="Format of the topics.")]
Servers = Annotated[str | None, typer.Option(help="Kafka; default warehouse.kafka_servers.")]
Folder = Annotated[str | None, typer.Option(help="Folder of the tables (warehouse.folder).")]


@app.command()
def run(
    namespaces: Namespaces = None,
    topics: Topics = None,
    format: Format = "bson",
    contract: Annotated[str | None, typer.Option(help="evolve, json or strict (warehouse.contract).")] = None,
    backfill: Annotated[bool, typer.Option("--backfill", help="Begin with the documents that are there.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when everything that is there is done.")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="Where the position is kept.")] = None,
    uri: Annotated[str | None, typer.Option(help="MongoDB; default mongodb.uri.")] = None,
    servers: Servers = None,
    folder: Folder = None,
) -> None:
    """Keep a history and a mirror of every chosen collection.

    Events come from the topics that --topics names, or directly from MongoDB; --backfill first takes the documents
    that are there already. Stop it with Ctrl-C; it goes on from its checkpoint.
    """
    from tailrace.capture.source.namespaces import Namespaces as Selection
    from tailrace.cli.spark_session import spark_session
    from tailrace.spark import supervise
    from tailrace.warehouse.job import WarehouseJob

    settings = session.settings(
        mongodb__uri=uri,
        warehouse__kafka_servers=servers,
        warehouse__contract=contract,
        warehouse__folder=folder,
    )
    logging.basicConfig(level=settings.log.level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every call
    job = WarehouseJob(settings.warehouse, Selection.parse(namespaces or ()))
    place = checkpoint or f"{settings.spark.checkpoints}/warehouse"
    with spark_session(settings.spark) as spark:
        start = _backfilled(job, spark, settings, namespaces, place) if backfill and not topics else None
        events = (
            topic_events(spark, settings.warehouse, topics, format)
            if topics
            else _direct_events(spark, settings, namespaces, start)
        )
        typer.echo(f"warehouse {settings.warehouse.folder}, checkpoint {place}", err=True)
        pace = f"{settings.warehouse.every_seconds} seconds"
        trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": pace}
        supervise(lambda: job.start(events, place, **trigger))


@app.command()
def tables(folder: Folder = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the tables with their rows, files and newest snapshots."""
    settings = session.settings(warehouse__folder=folder)
    with table_states(settings) as states:
        if as_json:
            typer.echo(json.dumps([asdict(state) for state in states], indent=2, default=str))
        else:
            Console().print(_table(states) if states else "no tables")


@app.command()
def compact(namespaces: Namespaces = None, folder: Folder = None) -> None:
    """Put small files together, and sort the rows of mirrors by key."""
    from tailrace.warehouse.maintenance import compact as compact_table

    with _chosen_tables(namespaces, folder) as (lake, chosen):
        for state in chosen:
            done = compact_table(lake, _name(state), state.kind)
            typer.echo(f"{state.name}: {done.files_before} files became {done.files_after}, {size(done.bytes)}")


@app.command()
def expire(
    namespaces: Namespaces = None,
    keep_hours: Annotated[float | None, typer.Option(help="Keep snapshots of these hours.")] = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="Remove files that killed jobs left behind, too.")] = False,
    folder: Folder = None,
) -> None:
    """Remove old snapshots, and the files that only they need."""
    from tailrace.warehouse.maintenance import expire as expire_table
    from tailrace.warehouse.maintenance import remove_orphans

    hours = keep_hours if keep_hours is not None else session.settings().warehouse.keep_hours
    with _chosen_tables(namespaces, folder) as (lake, chosen):
        for state in chosen:
            removed = expire_table(lake, _name(state), hours)
            removed += remove_orphans(lake, _name(state)) if orphans else 0
            typer.echo(f"{state.name}: {removed} files removed")


@app.command()
def rebuild(
    namespaces: Annotated[list[str], typer.Argument(help="The collections, as db.collection.")],
    topics: Annotated[str, typer.Option(help="Topics, with commas, or /pattern/.")],
    start: Annotated[str, typer.Option("--from", help="earliest, or an ISO time.")] = "earliest",
    format: Format = "bson",
    force: Annotated[bool, typer.Option("--force", help="Swap although events were left over.")] = False,
    servers: Servers = None,
    folder: Folder = None,
) -> None:
    """Build mirrors anew from the topics, beside the old ones, and put them in their place in one step.

    Stop `tailrace warehouse run` first. Events that the history lacks are added to it; it loses none.
    """
    from tailrace.cli.spark_session import spark_session
    from tailrace.warehouse.rebuild import rebuild_mirrors, starting_options

    settings = session.settings(warehouse__kafka_servers=servers, warehouse__folder=folder)
    with spark_session(settings.spark) as spark:
        events = topic_events(spark, settings.warehouse, topics, format, starting_options(start))
        for done in rebuild_mirrors(events, settings.warehouse, namespaces, force=force):
            typer.echo(f"{done.namespace}: {done.rows_before} rows became {done.rows_after}")


def topic_events(
    spark: SparkSession,
    settings: WarehouseSettings,
    topics: str,
    format: str,
    options: dict[str, str] | None = None,
) -> DataFrame:
    """Give the stream of topics."""
    from tailrace.spark import from_kafka
    from tailrace.warehouse.job import COLUMNS

    return from_kafka(
        spark,
        settings.kafka_servers,
        [topics] if topics.startswith("/") else topics.split(","),
        format=format,
        schema=COLUMNS,
        max_events_per_batch=settings.events_per_batch,
        keep_bad_records=True,
        options=options,
    )


def _direct_events(
    spark: SparkSession, settings: Settings, namespaces: list[str] | None, start: str | None
) -> DataFrame:
    from tailrace.warehouse.job import COLUMNS

    options = {
        "uri": settings.mongodb.uri.get_secret_value(),
        **({"namespaces": ",".join(namespaces)} if namespaces else {}),
        "source": settings.warehouse.source,
        **({"startAtOperationTime": start} if start else {}),
    }
    return spark.readStream.format("tailrace").options(**options).schema(COLUMNS).load()


def _backfilled(
    job: Any, spark: SparkSession, settings: Settings, namespaces: list[str] | None, checkpoint: str
) -> str | None:
    """Take the documents that are there, unless the job has begun before."""
    if Path(checkpoint, "offsets").exists():
        typer.echo("the checkpoint is there already: going on from it, without a backfill", err=True)
        return None
    start: str = job.backfill(spark, settings.mongodb.uri.get_secret_value(), namespaces or ())
    return start


@contextmanager
def table_states(settings: Settings) -> Iterator[list[TableState]]:
    """Give the tables: from the folder itself, or, for any other catalog, by Spark."""
    from tailrace.warehouse import read_tables

    if not settings.warehouse.catalog_config and "://" not in settings.warehouse.folder:
        yield read_tables(settings.warehouse.folder)
        return
    with _lake(settings) as lake:
        yield list(lake.states())


@contextmanager
def _lake(settings: Settings) -> Iterator[Lake]:
    from tailrace.cli.spark_session import spark_session
    from tailrace.warehouse.lake import Lake, configure_catalog

    with spark_session(settings.spark) as spark:
        configure_catalog(spark, settings.warehouse)
        yield Lake(spark, settings.warehouse.catalog)


@contextmanager
def _chosen_tables(namespaces: list[str] | None, folder: str | None) -> Iterator[tuple[Lake, list[TableState]]]:
    from tailrace.capture.source.namespaces import Namespaces as Selection

    selection = Selection.parse(namespaces or ())
    with _lake(session.settings(warehouse__folder=folder)) as lake:
        yield lake, [state for state in lake.states() if selection.contains_event(state.namespace or state.name)]


def _name(state: TableState) -> tuple[str, str]:
    database, _, table = state.name.partition(".")
    return database, table


def _table(states: list[TableState]) -> Table:
    table = Table("table", "kind", "rows", "files", "size", "columns", "drift", "snapshots", "newest", box=None)
    for state in states:
        newest = f"{state.snapshots[-1].at:%Y-%m-%d %H:%M:%S}Z" if state.snapshots else "never"
        numbers = (
            f"{state.rows:,}",
            f"{state.files:,}",
            size(state.bytes),
            str(len(state.columns)),
            str(len(state.drift)),
        )
        table.add_row(state.name, state.kind.value, *numbers, str(len(state.snapshots)), newest)
    return table
