"""`tailrace warehouse`: collections as Iceberg or Delta tables, from topics or directly from MongoDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tailrace.capture.formats import event_decoder_of
from tailrace.cli.answers import console_for_tables
from tailrace.cli.flags import (
    FOLDER,
    URI,
    AsJson,
    Backfill,
    Checkpoint,
    Flag,
    Once,
    Resume,
    TopicFormat,
    Topics,
    with_settings,
)
from tailrace.cli.renewal import Renewal, run_renewed
from tailrace.cli.spark_session import check_mongodb, check_topics
from tailrace.cli.units import size
from tailrace.errors import MissingExtra, SettingsError
from tailrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.settings import WarehouseSettings
    from tailrace.warehouse import TableState
    from tailrace.warehouse.tables.format import Lake

app = typer.Typer(
    help="Keep collections as Iceberg or Delta tables: a history and a mirror each.", no_args_is_help=True
)

Namespaces = Annotated[list[str] | None, typer.Argument(help="db.collection, db or /pattern/; default: all.")]
_SERVERS = Flag("servers", "warehouse.kafka_servers", "Kafka")


@app.command()
@with_settings(URI, _SERVERS, FOLDER, Flag("contract", "warehouse.contract", "evolve, json, variant or strict"))
def run(
    settings: Settings,
    namespaces: Namespaces = None,
    topics: Topics = None,
    format: TopicFormat = None,
    backfill: Backfill = False,
    resume: Resume = False,
    once: Once = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Keep a mirror and a history table of every selected collection up to date.

    Events come from the topics in --topics, or directly from MongoDB; --backfill starts with the existing documents.
    Stop it with Ctrl-C; the next run resumes from the checkpoint.
    """
    from tailrace.capture.source.namespaces import Namespaces as Selection
    from tailrace.cli.spark_session import first_position, spark_session, stoppable
    from tailrace.spark import supervise
    from tailrace.spark.checkpoint import QueryCheckpoint
    from tailrace.spark.lineage import lineage_of, topic_datasets
    from tailrace.spark.planner import available_now
    from tailrace.spark.stores import check_stores, check_tables
    from tailrace.telemetry.tracing import telemetry_of
    from tailrace.warehouse.job import WarehouseJob

    chosen = (format or settings.capture.format) if topics else None
    selection = Selection.parse(namespaces or ())
    if chosen is not None:
        check_topics(settings.warehouse.kafka_servers, "warehouse.kafka_servers", chosen)
    else:
        check_mongodb(settings, settings.warehouse, namespaces or ())
    location = checkpoint or f"{settings.spark.checkpoints}/warehouse"
    with ExitStack() as opened:
        tracing = opened.enter_context(telemetry_of(settings.telemetry))
        spark = opened.enter_context(spark_session(settings.spark, table_format=settings.warehouse.format))
        check_stores(spark, location)
        check_tables(spark, settings.warehouse)
        lineage = opened.enter_context(lineage_of(spark, "tailrace.tables"))
        if topics and lineage.is_on:
            lineage.uses(topic_datasets(settings.warehouse.kafka_servers, topics))

        def run(settings: Settings, renewal: Renewal) -> None:
            source = None if topics else settings.mongodb.uri.get_secret_value()
            job = WarehouseJob(
                settings.warehouse, selection, uri=source, format=chosen, tracing=tracing, lineage=lineage
            )
            until = None
            kept = QueryCheckpoint(spark, location)
            kept.require_source(topics=bool(topics))
            if topics:
                events = topic_records(spark, settings.warehouse, topics, chosen or "")
            else:
                start = first_position(
                    kept,
                    backfill=(lambda: job.backfill(spark, source or "", namespaces or ())) if backfill else None,
                    recorded=lambda: job.recorded(spark),
                    resume=resume,
                )
                options = _direct_options(settings, namespaces, start)
                if once:
                    until, options = available_now(options, settings.warehouse.events_per_batch)
                    if until is not None and kept.has_done(until):
                        return
                events = _direct_events(spark, options)
            typer.echo(f"warehouse {settings.warehouse.folder}, checkpoint {location}", err=True)
            pace = f"{settings.warehouse.every_seconds} seconds"
            trigger: dict[str, Any] = {"processingTime": pace}
            if once:
                trigger = {"availableNow": True} if until is None else {}
            with stoppable() as is_stopped:
                supervise(
                    lambda: job.start(events, location, **trigger),
                    should_stop=lambda: is_stopped() or renewal.poll(),
                    until=until,
                )

        run_renewed(settings, run)


@app.command()
@with_settings(FOLDER)
def tables(settings: Settings, as_json: AsJson = False) -> None:
    """List the tables with their rows, files and latest snapshots."""
    with table_states(settings) as states:
        if as_json:
            typer.echo(json.dumps([asdict(state) for state in states], indent=2, default=str))
        else:
            console_for_tables().print(_table(states) if states else "no tables")


@app.command()
@with_settings(FOLDER)
def compact(settings: Settings, namespaces: Namespaces = None) -> None:
    """Merge small files, and sort mirrors by key."""
    with _chosen_tables(settings, namespaces) as (lake, chosen):
        for state in chosen:
            done = lake.compact(_name(state), state.kind)
            typer.echo(f"{state.name}: {done.files_before} files became {done.files_after}, {size(done.bytes)}")


@app.command()
@with_settings(FOLDER, Flag("keep_hours", "warehouse.keep_hours", "Keep snapshots for this many hours", float))
def expire(
    settings: Settings,
    namespaces: Namespaces = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="Also remove files left behind by killed jobs.")] = False,
) -> None:
    """Remove old snapshots and the files only they use."""
    with _chosen_tables(settings, namespaces) as (lake, chosen):
        for state in chosen:
            removed = lake.expire(_name(state), settings.warehouse.keep_hours)
            removed += lake.remove_orphans(_name(state)) if orphans else 0
            typer.echo(f"{state.name}: {removed} files removed")


@app.command()
@with_settings(_SERVERS, FOLDER)
def rebuild(
    settings: Settings,
    namespaces: Annotated[list[str], typer.Argument(help="The collections, as db.collection.")],
    topics: Annotated[str, typer.Option(help="Comma-separated topics, or /pattern/.")],
    start: Annotated[str, typer.Option("--from", help="earliest, or an ISO time.")] = "earliest",
    format: TopicFormat = None,
    force: Annotated[bool, typer.Option("--force", help="Swap even though some events could not be applied.")] = False,
) -> None:
    """Rebuild mirrors from the topics next to the old ones, then swap them in one step.

    Stop `tailrace warehouse run` first. Events missing from the history are added to it; none are removed.
    """
    from tailrace.cli.spark_session import spark_session
    from tailrace.spark.stores import check_tables
    from tailrace.warehouse.rebuild import rebuild_mirrors, starting_options

    chosen = format or settings.capture.format
    check_topics(settings.warehouse.kafka_servers, "warehouse.kafka_servers", chosen)
    with spark_session(settings.spark, table_format=settings.warehouse.format) as spark:
        check_tables(spark, settings.warehouse)
        events = topic_events(spark, settings.warehouse, topics, chosen, starting_options(start))
        for done in rebuild_mirrors(events, settings.warehouse, namespaces, force=force):
            typer.echo(f"{done.namespace}: {done.rows_before} rows became {done.rows_after}")


@app.command("replay-dead-letters")
@with_settings(FOLDER)
def replay_dead_letters(settings: Settings, format: TopicFormat = None) -> None:
    """Retry the dead letters: apply those that --format can read to the tables."""
    from tailrace.cli.spark_session import spark_session
    from tailrace.spark.stores import check_tables
    from tailrace.warehouse.job import WarehouseJob

    chosen = format or settings.capture.format
    event_decoder_of(chosen)
    with spark_session(settings.spark, table_format=settings.warehouse.format) as spark:
        check_tables(spark, settings.warehouse)
        done, left = WarehouseJob(settings.warehouse).replay_dead_letters(spark, chosen)
    typer.echo(f"{done} records are in the tables, {left} cannot be read")


def topic_events(
    spark: SparkSession,
    settings: WarehouseSettings,
    topics: str,
    format: str,
    options: dict[str, str] | None = None,
) -> DataFrame:
    """Give the events of topics as a stream."""
    from tailrace.spark.from_kafka import events_of
    from tailrace.warehouse.job import COLUMNS

    return events_of(topic_records(spark, settings, topics, format, options), format, COLUMNS)


def topic_records(
    spark: SparkSession,
    settings: WarehouseSettings,
    topics: str,
    format: str,
    options: dict[str, str] | None = None,
) -> DataFrame:
    """Give the records of topics as a stream; the job makes events of them where it writes the batch."""
    from tailrace.spark.from_kafka import kafka_records

    return kafka_records(
        spark,
        settings.kafka_servers,
        [topics] if topics.startswith("/") else topics.split(","),
        format=format,
        limit=settings.events_per_batch,
        options={"failOnDataLoss": str(settings.fail_on_data_loss).lower(), **(options or {})},
    )


def _direct_options(settings: Settings, namespaces: list[str] | None, start: dict[str, str]) -> dict[str, str]:
    from tailrace.spark.options import own_options

    return {
        **own_options(settings.mongodb.uri.get_secret_value()),
        **({"namespaces": ",".join(namespaces)} if namespaces else {}),
        "source": settings.warehouse.source,
        **start,
    }


def _direct_events(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    from tailrace.warehouse.job import COLUMNS

    return spark.readStream.format("tailrace").options(**options).schema(COLUMNS).load()


@contextmanager
def table_states(settings: Settings) -> Iterator[list[TableState]]:
    """Give the tables without Spark; with it where the catalog is one that only Spark has, or PyIceberg is not here."""
    from tailrace.warehouse.tables.catalogs import open_tables

    try:
        with closing(open_tables(settings.warehouse, settings.spark.config)) as reader:
            states = reader.read()
    except (MissingExtra, SettingsError):
        with _lake(settings) as lake:
            states = list(lake.states())
    yield states


@contextmanager
def _lake(settings: Settings) -> Iterator[Lake]:
    from tailrace.cli.spark_session import spark_session
    from tailrace.spark.stores import check_tables
    from tailrace.warehouse.lake import configure_catalog, open_lake

    with spark_session(settings.spark, table_format=settings.warehouse.format) as spark:
        check_tables(spark, settings.warehouse)
        configure_catalog(spark, settings.warehouse)
        yield open_lake(spark, settings.warehouse)


@contextmanager
def _chosen_tables(settings: Settings, namespaces: list[str] | None) -> Iterator[tuple[Lake, list[TableState]]]:
    from tailrace.capture.source.namespaces import Namespaces as Selection

    selection = Selection.parse(namespaces or ())
    with _lake(settings) as lake:
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
