"""`tailrace features`: keep features per entity in Redis, from topics or directly from MongoDB."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tailrace.capture.formats import event_decoder_of
from tailrace.cli.features_offline import export, try_
from tailrace.cli.flags import (
    REDIS,
    URI,
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
from tailrace.extras import require_modules
from tailrace.settings import Settings
from tailrace.spark_settings import check_feature_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.features.job import FeatureJob

HELP = """Keep the features of a definition in Redis.

The definition is a TOML file or [bold]module:name[/bold]. Events come from the topics in [bold]--topics[/bold], or
directly from MongoDB. [bold]--backfill[/bold] starts with the existing documents, then follows all later changes. Stop
it with Ctrl-C; the next run resumes from the checkpoint.
"""


class _RunUnlessNamed(TyperGroup):
    """Without the name of a verb, a definition is what `run` gets: `tailrace features FILE`."""

    default_verb = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` before what is no verb and no question for help."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default_verb, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(help=HELP, no_args_is_help=True, cls=_RunUnlessNamed)
app.command("export")(export)
app.command("try")(try_)


@app.command("run", help=HELP)
@with_settings(URI, REDIS, Flag("servers", "features.kafka_servers", "Kafka"))
def features(
    settings: Settings,
    definition: Annotated[str, typer.Argument(help="A TOML file, or module:name.")],
    topics: Topics = None,
    format: TopicFormat = None,
    backfill: Backfill = False,
    resume: Resume = False,
    once: Once = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Keep the features of a definition in Redis."""
    require_modules("`tailrace features`", "pyspark", "redis")
    from tailrace.cli.spark_session import first_position, spark_session, stoppable
    from tailrace.features import load_definition
    from tailrace.features.job import EVENTS_PER_BATCH, FeatureJob
    from tailrace.spark import supervise
    from tailrace.spark.checkpoint import QueryCheckpoint
    from tailrace.spark.lineage import collection_datasets, lineage_of, redis_dataset, topic_datasets
    from tailrace.spark.options import own_options
    from tailrace.spark.planner import available_now
    from tailrace.spark.session import is_submitted
    from tailrace.spark.stores import check_stores
    from tailrace.telemetry.tracing import telemetry_of

    declared = load_definition(definition)
    if topics:
        check_feature_dead_letters(settings)
        check_topics(settings.features.kafka_servers, "features.kafka_servers", format or settings.capture.format)
    else:
        check_mongodb(settings, settings.features, declared.namespaces)
    location = checkpoint or f"{settings.spark.checkpoints}/features-{declared.name}"
    with ExitStack() as opened:
        tracing = opened.enter_context(telemetry_of(settings.telemetry))
        spark = opened.enter_context(spark_session(settings.spark))
        check_stores(spark, location, *([settings.features.dead_letters] if topics else []))
        lineage = opened.enter_context(lineage_of(spark, f"tailrace.features.{declared.name}"))
        if lineage.is_on:
            lineage.uses(
                topic_datasets(settings.features.kafka_servers, topics)
                if topics
                else collection_datasets(settings.mongodb.uri.get_secret_value(), declared.namespaces),
                [redis_dataset(settings.features.redis_url.get_secret_value(), declared.name)],
            )

        def run(settings: Settings, renewal: Renewal) -> None:
            job = FeatureJob(
                declared,
                settings.features.redis_url.get_secret_value(),
                settings.features.dead_letters,
                in_driver=settings.spark.master.startswith("local") and not is_submitted(),
                format=(format or settings.capture.format) if topics else None,
                uri=settings.mongodb.uri.get_secret_value(),
                tracing=tracing,
            )
            until = None
            kept = QueryCheckpoint(spark, location)
            kept.require_source(topics=bool(topics))
            if topics:
                events = _topic_events(job, spark, settings, topics)
            else:
                uri = settings.mongodb.uri.get_secret_value()
                fill = (lambda: job.backfill(spark, uri)) if backfill else None
                start = first_position(kept, backfill=fill, recorded=job.recorded, resume=resume)
                options = {**own_options(uri), "source": settings.features.source, **start}
                if once:
                    until, options = available_now(options, EVENTS_PER_BATCH)
                    if until is None:
                        job = replace(job, in_driver=False)  # its one batch may be large
                    elif kept.has_done(until):
                        return
                events = job.events(spark, uri, options)
            names = ", ".join(declared.namespaces)
            typer.echo(f"features {declared.name} of {names}, checkpoint {location}", err=True)
            trigger: dict[str, Any] = {"availableNow": True} if once and until is None else {}
            with stoppable() as is_stopped:
                supervise(
                    lambda: job.start(events, location, **trigger),
                    should_stop=lambda: is_stopped() or renewal.poll(),
                    until=until,
                )

        run_renewed(settings, run)


@app.command("replay-dead-letters")
@with_settings(REDIS)
def replay_dead_letters(
    settings: Settings,
    definition: Annotated[str, typer.Argument(help="A TOML file, or module:name.")],
    format: TopicFormat = None,
) -> None:
    """Retry the dead letters: apply those that --format can read to the features."""
    from tailrace.cli.spark_session import spark_session
    from tailrace.features import load_definition
    from tailrace.features.job import FeatureJob

    declared, chosen = load_definition(definition), format or settings.capture.format
    event_decoder_of(chosen)
    check_feature_dead_letters(settings)
    redis, letters = settings.features.redis_url.get_secret_value(), settings.features.dead_letters
    job = FeatureJob(declared, redis, letters, format=chosen)
    with spark_session(settings.spark) as spark:
        done, left = job.replay_dead_letters(spark)
    typer.echo(f"{done} records are in the features, {left} cannot be read")


def _topic_events(job: FeatureJob, spark: SparkSession, settings: Settings, topics: str) -> DataFrame:
    names = [topics] if topics.startswith("/") else topics.split(",")
    lost = {"failOnDataLoss": str(settings.features.fail_on_data_loss).lower()}
    return job.records(spark, settings.features.kafka_servers, names, lost)
