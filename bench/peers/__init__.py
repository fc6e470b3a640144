"""What others offer for the same jobs: where it comes from, and how it is started.

The jars come from Maven Central by the stand's own fetcher, verified against the `*.sha256` files here; the small Java
programs that drive them are run from source (`java File.java`), which needs a JDK. Where there is none, the
peer is left out and the result says why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.contestant import ProcessContestant, Unavailable
from tailrace.errors import TailraceError
from tailrace.stand.java import java_home
from tailrace.stand.maven import fetch_jars, read_checksums

HERE = Path(__file__).parent
HEAP = "-Xmx1g"


@dataclass(frozen=True, slots=True)
class Peer:
    """A product of somebody else, pinned."""

    name: str
    title: str
    version: str
    coordinates: tuple[str, ...]

    def jars(self) -> list[Path]:
        """Its jars, fetched on the first call."""
        return fetch_jars(f"bench-{self.name}", self.coordinates, read_checksums(HERE / f"{self.name}.sha256"))

    def class_path(self) -> str:
        """For `java -cp`."""
        return f"{self.jars()[0].parent}/*"


DEBEZIUM = Peer(
    "debezium",
    "Debezium",
    "3.6.1.Final",
    (
        "io.debezium:debezium-api:3.6.1.Final",
        "io.debezium:debezium-embedded:3.6.1.Final",
        "io.debezium:debezium-connector-mongodb:3.6.1.Final",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
)
MONGO_KAFKA = Peer(
    "mongo_kafka",
    "MongoDB Kafka connector",
    "2.0.1",
    (
        "org.mongodb.kafka:mongo-kafka-connect:2.0.1",
        "org.apache.kafka:connect-runtime:3.9.1",
        "org.apache.kafka:connect-json:3.9.1",
        "org.slf4j:slf4j-simple:2.0.13",
    ),
)
MONGO_SPARK = Peer(
    "mongo_spark", "MongoDB Spark Connector", "10.5.0", ("org.mongodb.spark:mongo-spark-connector_2.12:10.5.0",)
)


def fetch_everything() -> None:
    """Fetch all jars that a run needs, so that no scenario pays for it; what cannot be had is left out later."""
    from tailrace.cli.spark_session import fetched_connectors

    for fetch in (DEBEZIUM.jars, MONGO_KAFKA.jars, MONGO_SPARK.jars, fetched_connectors):
        try:
            fetch()
        except TailraceError as error:
            print(f"not fetched: {error}", file=sys.stderr, flush=True)


def java() -> str:
    """The program."""
    return str(java_home() / "bin" / "java")


@cache
def can_run_source() -> bool:
    """Whether this Java can run a source file: a runtime without the compiler cannot."""
    listing = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    return "jdk.compiler" in listing.stdout


def java_program(
    name: str, peer: Peer, source: str, properties: Mapping[str, object], *arguments: object, **options: object
) -> ProcessContestant | Unavailable:
    """A contestant that is a Java program of ours around a peer; `properties` are the peer's own settings."""
    try:
        if not can_run_source():
            return Unavailable(name, "it is driven by a Java program, and this Java has no compiler (a JDK is needed)")
        class_path = peer.class_path()
    except TailraceError as error:
        return Unavailable(name, f"it cannot be fetched: {error}")
    given = [f"{key}={value}" for key, value in properties.items()]
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    command = [java(), HEAP, quiet, "-cp", class_path, str(HERE / source), *map(str, arguments), *given]
    return ProcessContestant(name, command, peer=True, settings=properties, warm_ups=1, **options)  # type: ignore[arg-type]
