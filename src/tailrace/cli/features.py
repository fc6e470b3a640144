"""`tailrace features`: keep features per entity in Redis, from topics or directly from MongoDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.features.job import FeatureJob
    from tailrace.settings import Settings

HELP = """Keep the features of a definition in Redis.

The definition is a TOML file or [bold]module:name[/bold]. Events come from the topics that [bold]--topics[/bold] names,
or directly from MongoDB. [bold]--backfill[/bold] first computes the features of the documents that are there already,
then follows what happens from that moment on. Stop it with Ctrl-C; it goes on from its checkpoint.
"""


def features(
    definition: Annotated[str, typer.Argument(help="A TOML file, or module:name.")],
    topics: Annotated[str | None, typer.Option(help="Topics, with commas, or /pattern/; none reads MongoDB.")] = None,
    format: Annotated[str, typer.Option(help="Format of the topics.")] = "bson",
    backfill: Annotated[bool, typer.Option("--backfill", help="Begin with the documents that are there.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when everything that is there is done.")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="Where the position is kept.")] = None,
    uri: Annotated[str | None, typer.Option(help="MongoDB; default mongodb.uri.")] = None,
    redis: Annotated[str | None, typer.Option(help="Redis; default features.redis_url.")] = None,
    servers: Annotated[str | None, typer.Option(help="Kafka; default features.kafka_servers.")] = None,
) -> None:
    """Keep the features of a definition in Redis."""
    from tailrace.cli.spark_session import spark_session
    from tailrace.features import load_definition
    from tailrace.features.job import FeatureJob
    from tailrace.spark.session import is_submitted

    settings = session.settings(mongodb__uri=uri, features__redis_url=redis, features__kafka_servers=servers)
    job = FeatureJob(
        load_definition(definition),
        settings.features.redis_url.get_secret_value(),
        settings.features.dead_letters,
        # AvailableNow knows one batch, which may be large.
        in_driver=settings.spark.master.startswith("local") and not is_submitted() and not once,
        format=format if topics else None,
    )
    place = checkpoint or f"{settings.spark.checkpoints}/features-{job.definition.name}"
    with spark_session(settings.spark) as spark:
        start = _backfilled(job, spark, settings, place) if backfill else None
        events = _events(job, spark, settings, topics, start)
        typer.echo(f"features {job.definition.name} of {job.definition.namespace}, checkpoint {place}", err=True)
        _run(job, events, place, {"availableNow": True} if once else {})


def _backfilled(job: FeatureJob, spark: SparkSession, settings: Settings, checkpoint: str) -> str | None:
    """Fill the features, unless the job has begun before: its checkpoint then says where to go on."""
    if Path(checkpoint, "offsets").exists():
        typer.echo("the checkpoint is there already: going on from it, without a backfill", err=True)
        return None
    return job.backfill(spark, settings.mongodb.uri.get_secret_value())


def _events(
    job: FeatureJob, spark: SparkSession, settings: Settings, topics: str | None, start: str | None
) -> DataFrame:
    if topics:
        names = [topics] if topics.startswith("/") else topics.split(",")
        return job.records(spark, settings.features.kafka_servers, names)
    options = {"source": settings.features.source, **({"startAtOperationTime": start} if start else {})}
    return job.events(spark, settings.mongodb.uri.get_secret_value(), options)


def _run(job: FeatureJob, events: DataFrame, checkpoint: str, trigger: dict[str, Any]) -> None:
    from tailrace.spark import supervise

    supervise(lambda: job.start(events, checkpoint, **trigger))
