"""A Spark session for the verbs that run jobs: the stand fetches Java and the connector jars where they are missing."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from tailrace.capture.formats import event_decoder_of
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.cli.session import connected, say_missing
from tailrace.cli.session import session as invocation
from tailrace.errors import MissingExtra, ServerUnreachable, SettingsError
from tailrace.owned import handling_signals
from tailrace.settings import FeaturesSettings, Settings, SparkSettings, WarehouseSettings
from tailrace.spark_settings import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.spark.checkpoint import QueryCheckpoint, Recorded


@contextmanager
def spark_session(
    settings: SparkSettings, *, is_quiet: bool = False, table_format: str = "iceberg"
) -> Iterator[SparkSession]:
    """Give a session; under `spark-submit`, by Spark Connect, or with jars in the settings, nothing is fetched.

    `table_format` is that of the tables it shall know (`warehouse.format`). `is_quiet` keeps what the JVM says about
    itself from the terminal of somebody who only wants an answer.
    """
    try:
        from tailrace.spark import session
    except ImportError as error:
        hint = "Install it with: pip install 'tailrace[spark]'"
        raise MissingExtra(f"Spark jobs need {error.name}", hint=hint) from None
    _leave_stacks_out()
    if session.is_submitted() or session.is_connect(settings):
        with session.open_session(settings, table_format=table_format) as spark:
            yield spark
        return
    check_spark(settings)
    from tailrace.stand.java import java_home

    jars = [] if settings.jars else fetched_connectors(table_format)
    with ExitStack() as opened:
        with _kept_quiet() if is_quiet else nullcontext():
            spark = opened.enter_context(
                session.open_session(settings, jars=jars, java_home=java_home(), table_format=table_format)
            )
        yield spark


def _leave_stacks_out() -> None:
    """Keep pyspark from logging the stack of the JVM for each query that is refused; the error says what is wrong."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = not invocation.debug


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C and SIGTERM end a job between two polls of it; Ctrl-C shows in the exit code.

    Spark's own handler calls the JVM in the middle of another call, and what that breaks hides the reason of the end.
    A second Ctrl-C ends everything at once.
    """
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    with handling_signals(stop, (signal.SIGINT, signal.SIGTERM)):
        yield lambda: bool(received)
    if signal.SIGINT in received:
        raise KeyboardInterrupt


@contextmanager
def _kept_quiet() -> Iterator[None]:
    """Let a JVM that is started meanwhile write its warnings into a file, which is shown when the start fails.

    The JVM inherits our standard error, and some of its lines come before any logging could be configured.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as warnings:
        os.dup2(warnings.fileno(), 2)
        try:
            yield
        except BaseException:
            warnings.seek(0)
            os.write(terminal, warnings.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def fetched_connectors(table_format: str = "iceberg") -> list[Path]:
    """Give the pinned jars of the connectors for this pyspark, Delta Lake's among them if asked; fetched once."""
    import pyspark

    from tailrace.spark.connectors import DELTA_CHECKSUMS, connectors_of
    from tailrace.stand.maven import fetch_jars, read_checksums

    known = connectors_of(pyspark.__version__, table_format)
    connectors = fetch_jars("spark-connectors", known.packages, read_checksums(known.checksums), known.overrides)
    if table_format != "delta":
        return connectors
    # Scala and ANTLR come along in the versions of Delta's own build; pyspark has its own, which are the ones to use.
    delta = fetch_jars("delta", known.delta, read_checksums(DELTA_CHECKSUMS))
    return [*connectors, *(jar for jar in delta if jar.name.startswith("delta-"))]


def first_position(
    checkpoint: QueryCheckpoint,
    *,
    backfill: Callable[[], str] | None,
    recorded: Callable[[], Recorded | None],
    resume: bool,
) -> dict[str, Any]:
    """Say where a job that reads MongoDB begins (`first_start`), and that a backfill is left out where it goes on."""
    from tailrace.spark.checkpoint import first_start

    if backfill is not None and checkpoint.has_begun:
        typer.echo("the checkpoint is there already: going on from it, without a backfill", err=True)
    return first_start(checkpoint, backfill=backfill, recorded=recorded, resume=resume)


_SECONDS_TO_ANSWER = 5.0


def check_mongodb(settings: Settings, section: FeaturesSettings | WarehouseSettings, namespaces: Sequence[str]) -> None:
    """Raise if MongoDB does not answer, or has no change streams or no oplog where the job needs them."""
    with connected(settings, needs_oplog=section.source == "oplog") as client:
        say_missing(client, namespaces)


def check_topics(servers: str, key: str, format: str) -> None:
    """Raise if jobs do not read the format, or no broker answers at the servers, which `key` names in the settings."""
    event_decoder_of(format)
    address = KafkaAddress.of(servers)
    failures = []
    for server in address.servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit():
            raise SettingsError(f"{key}: {server!r} is not host:port", hint="It looks like broker1:9092,broker2:9092.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
        except (OSError, OverflowError) as error:
            failures.append(f"{server.strip()}: {error}")
        else:
            return
    raise ServerUnreachable(
        f"no Kafka broker answers ({key}): {'; '.join(failures)}",
        hint=f"Check {key} and that the broker runs, or start one with `tailrace stand up kafka`.",
    )
