"""The checkpoint of a query, wherever Spark can reach: who the query is, how far it has come, and where it began.

Spark keeps where each batch ends. Where the first one begins it asks its source again at every start, so a job that
was given that only once, after a backfill, writes that down here before its first batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from tailrace.errors import CheckpointMissing, SettingsError
from tailrace.spark.jvm import HadoopFiles
from tailrace.spark.offset import Offset

_START: Final = "tailrace-start.json"


class QueryCheckpoint:
    """The files of one query's checkpoint."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.spark = spark
        self.location = location.rstrip("/")
        self._files = HadoopFiles.of(spark) or LocalFiles()

    @property
    def has_begun(self) -> bool:
        """Whether a batch was planned, or a start was decided on."""
        return self.start is not None or bool(self._files.names(f"{self.location}/offsets"))

    @property
    def query(self) -> str:
        """The query's own id, which stays over restarts."""
        id_: str = json.loads(self._read("metadata") or "{}").get("id", self.location)
        return id_

    @property
    def start(self) -> dict[str, str] | None:
        """The options of the source that say where the first batch begins; None when nothing was written down."""
        text = self._read(_START)
        return None if text is None else json.loads(text)

    def begin_at(self, start: Mapping[str, str]) -> None:
        """Write down where the first batch begins, durably."""
        self._files.write(f"{self.location}/{_START}", json.dumps(dict(start)))

    def offsets(self, batch: int) -> str:
        """Give where a batch ends: the line of the source, behind a version and what Spark says about the batch.

        Where the first one begins stands for the end of the one before it.
        """
        text = self._read(f"offsets/{batch}" if batch >= 0 else _START)
        return "" if text is None else text.strip().splitlines()[-1]

    def has_done(self, until: Offset) -> bool:
        """Whether the last finished batch ends at a position or behind it: a query up to there has nothing to do."""
        done = [int(name) for name in self._files.names(f"{self.location}/commits") if name.isdigit()]
        end = self.offsets(max(done)) if done else ""
        return bool(end) and Offset.from_json(json.loads(end)).key >= until.key

    def require_source(self, *, topics: bool) -> None:
        """Refuse the checkpoint of a job that read from elsewhere: Spark would fail on its offsets again and again."""
        batches = [int(name) for name in self._files.names(f"{self.location}/offsets") if name.isdigit()]
        end = json.loads(self.offsets(max(batches, default=-1)) or "{}")
        if end and topics != _are_of_topics(end):
            reads, other = ("topics", "MongoDB") if topics else ("MongoDB", "topics")
            raise SettingsError(
                f"the checkpoint {self.location} is of a job that reads {other}, and this one reads {reads}",
                hint="Choose another folder with --checkpoint.",
            )

    def _read(self, name: str) -> str | None:
        return self._files.read(f"{self.location}/{name}")


def _are_of_topics(offsets: Any) -> TypeGuard[dict[str, dict[str, int]]]:
    """Whether offsets are Kafka's: by topic and partition."""
    return isinstance(offsets, dict) and all(isinstance(partitions, dict) for partitions in offsets.values())


def records_between(start: str, end: str) -> int | None:
    """Give how many records of topics are between two ends of batches; None when these are not of topics.

    A partition that the first one lacks begins at its first record, wherever that is: it counts from zero.
    """
    before, after = (json.loads(text) if text else None for text in (start, end))
    if not _are_of_topics(before) or not _are_of_topics(after):
        return None
    return sum(
        max(0, int(offset) - int(before.get(topic, {}).get(partition, 0)))
        for topic, partitions in after.items()
        for partition, offset in partitions.items()
    )


class LocalFiles:
    """Files of this machine, for sessions without a JVM of their own (Spark Connect)."""

    def read(self, location: str) -> str | None:
        """Read a small file; None when it is not there."""
        try:
            return _path(location).read_text()
        except FileNotFoundError:
            return None

    def write(self, location: str, text: str) -> None:
        """Write a small file as a whole."""
        path = _path(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}.tmp")
        made.write_text(text)
        made.replace(path)

    def names(self, location: str) -> list[str]:
        """List a folder; one that is not there is empty."""
        folder = _path(location)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _path(location: str) -> Path:
    return Path(urlsplit(location).path if location.startswith("file:") else location)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the output of a job says about how far a job without a checkpoint had come."""

    where: str
    """Who says so, for people."""
    until: str
    """The time of the newest event there, for people."""
    start: Mapping[str, str] | None
    """The options of the source that go on from there; None when that is not known."""


def first_start(
    checkpoint: QueryCheckpoint,
    *,
    backfill: Callable[[], str] | None,
    recorded: Callable[[], Recorded | None],
    resume: bool,
) -> dict[str, Any]:
    """Decide where a job that reads MongoDB begins; gives the options of the source.

    A checkpoint goes on. Without one, output that is there already was made by a job whose checkpoint is gone: what
    happened since would be left out without a word, so it is filled anew or gone on from, as the user says.
    """
    if checkpoint.has_begun:
        return checkpoint.start or {}
    if backfill is not None:
        start: Mapping[str, str] = {"startAtOperationTime": backfill()}
    else:
        found = recorded()
        if found is None:
            return {}
        if not resume or found.start is None:
            raise CheckpointMissing(
                f"{found.where} has what happened until {found.until}, and there is no checkpoint"
                f" {checkpoint.location} to go on from",
                hint=_ways(found),
            )
        start = found.start
    checkpoint.begin_at(start)
    return dict(start)


def _ways(found: Recorded) -> str:
    anew = "--backfill fills it anew from the documents as they are"
    if found.start is None:
        return f"Name the checkpoint that it had, or start again: {anew}."
    return f"Name the checkpoint that it had, or choose: --resume goes on from there, {anew}."
