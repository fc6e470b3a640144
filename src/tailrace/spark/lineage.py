"""OpenLineage: which datasets a job reads and writes, where Spark's own listener of it is configured.

That listener sees SQL and Spark's own sources. It does not see what goes through Python: a stream that `foreachBatch`
takes has no inputs for it, and Redis no table. So a job reports itself, as one run from its start to its end, to the
same address. A report that cannot be sent is logged, and the job goes on.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from pymongo.uri_parser import parse_uri
from pyspark.sql import SparkSession

from tailrace import __version__
from tailrace.capture.kafka_address import KafkaAddress
from tailrace.errors import TailraceError
from tailrace.http_client import fetch
from tailrace.logs import get_logger
from tailrace.spark.jvm import jvm_of

LISTENER: Final = "io.openlineage.spark.agent.OpenLineageSparkListener"
_PREFIX: Final = "spark.openlineage."
_SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACET: Final = "https://openlineage.io/spec/facets/2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"
_PRODUCER: Final = f"https://pypi.org/project/tailrace/{__version__}"
_SECONDS_TO_ANSWER: Final = 5.0
_log = get_logger("tailrace.spark")


@dataclass(frozen=True, slots=True, order=True)
class Dataset:
    """A dataset by OpenLineage's naming: where it is, and its name there."""

    namespace: str
    name: str


def topic_datasets(servers: str, topics: str) -> list[Dataset]:
    """Name topics, by the first of their brokers; a pattern in slashes stands for those that it would find."""
    address = KafkaAddress.of(servers)
    names = topics.split(",")
    if topics.startswith("/"):
        from tailrace.capture.recovery.topic_reader import topics_like

        names = topics_like(address, topics.strip("/"))
    return [Dataset(f"kafka://{address.servers.split(',')[0].strip()}", name) for name in names]


def collection_datasets(uri: str, namespaces: Iterable[str]) -> list[Dataset]:
    """Name collections, by the first host of their deployment."""
    host, port = parse_uri(uri, validate=False, warn=False)["nodelist"][0]
    return [Dataset(f"mongodb://{host}:{port}", name) for name in namespaces]


def redis_dataset(url: str, name: str) -> Dataset:
    """Name the features of a definition."""
    parts = urlsplit(url)
    return Dataset(f"redis://{parts.hostname}:{parts.port or 6379}", name)


def location_dataset(location: str) -> Dataset:
    """Name a table by its location, as the listener does."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return Dataset("file", parts.path.rstrip("/"))
    return Dataset(f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"))


class Lineage:
    """Reports one run of a job: its start, each dataset when it is first used, and how it ended."""

    def __init__(self, url: str, path: str, namespace: str, job: str, api_key: str | None = None) -> None:
        self._url = url
        self._path = path
        self._namespace = namespace
        self._job = job
        self._api_key = api_key
        self._run = str(uuid.uuid4())
        self._inputs: set[Dataset] = set()
        self._outputs: set[Dataset] = set()

    def __enter__(self) -> Lineage:
        self._emit("START")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._emit("COMPLETE" if kind is None or kind is KeyboardInterrupt else "FAIL")

    @property
    def is_on(self) -> bool:
        """Whether anything is reported."""
        return bool(self._url)

    def uses(self, inputs: Iterable[Dataset], outputs: Iterable[Dataset] = ()) -> None:
        """Report datasets that are read and written, unless they were reported before."""
        before = len(self._inputs) + len(self._outputs)
        self._inputs.update(inputs)
        self._outputs.update(outputs)
        if len(self._inputs) + len(self._outputs) > before:
            self._emit("RUNNING")

    def _emit(self, kind: str) -> None:
        try:
            answer = fetch(
                self._url, self._path, post=self._event(kind), bearer=self._api_key, timeout=_SECONDS_TO_ANSWER
            )
        except TailraceError as error:
            _log.warning("lineage_not_sent", kind=kind, error=error.message)
            return
        if answer.status >= 300:
            _log.warning("lineage_not_sent", kind=kind, status=answer.status)

    def _event(self, kind: str) -> dict[str, Any]:
        job_type = {"processingType": "STREAMING", "integration": "TAILRACE", "jobType": "JOB"}
        return {
            "eventType": kind,
            "eventTime": datetime.now(UTC).isoformat(),
            "producer": _PRODUCER,
            "schemaURL": _SCHEMA,
            "run": {"runId": self._run},
            "job": {
                "namespace": self._namespace,
                "name": self._job,
                "facets": {"jobType": {"_producer": _PRODUCER, "_schemaURL": _FACET, **job_type}},
            },
            "inputs": [{"namespace": each.namespace, "name": each.name} for each in sorted(self._inputs)],
            "outputs": [{"namespace": each.namespace, "name": each.name} for each in sorted(self._outputs)],
        }


class NoLineage(Lineage):
    """Reports nothing."""

    def __init__(self) -> None:
        super().__init__("", "", "", "")

    def _emit(self, kind: str) -> None:
        """Do nothing."""


NO_LINEAGE: Final = NoLineage()


def lineage_of(spark: SparkSession, job: str) -> Lineage:
    """Report where the session's listener reports; without a listener, or with another transport than HTTP, nowhere.

    A client cannot read the configuration of a Connect server: nothing is reported then.
    """
    if jvm_of(spark) is None:
        return NoLineage()
    config = spark.sparkContext.getConf()
    if LISTENER not in config.get("spark.extraListeners", ""):
        return NoLineage()
    url = config.get(f"{_PREFIX}transport.url", "")
    if config.get(f"{_PREFIX}transport.type", "") != "http" or not url:
        _log.warning("lineage_of_the_job_left_out", why="its transport is not http")
        return NoLineage()
    endpoint = config.get(f"{_PREFIX}transport.endpoint", "api/v1/lineage").strip("/")
    key = config.get(f"{_PREFIX}transport.auth.apiKey", "") or None
    return Lineage(url, f"/{endpoint}", config.get(f"{_PREFIX}namespace", "default"), job, key)
