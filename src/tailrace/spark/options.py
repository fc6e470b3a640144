"""The options of `format("tailrace")`, read and checked once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from tailrace.capture.source.namespaces import Namespaces
from tailrace.capture.source.source import Scope, Selection, read_pipeline
from tailrace.errors import SettingsError
from tailrace.policy import NO_POLICY, Policy
from tailrace.policy.configured import policy_of
from tailrace.raw.cluster_time import ClusterTime
from tailrace.settings import Settings, file_in_use
from tailrace.spark.offset import Offset

MIB = 1024 * 1024
_MOST_PARTITIONS = 1024


class PartitionBy(StrEnum):
    """How the events of a batch are divided between tasks."""

    RANGE = "range"
    """By position: nothing is read twice. The events of one document may be in several partitions."""
    KEY = "key"
    """By documentKey: all events of a document are in one partition, in their order."""


def own_options(uri: str) -> dict[str, str]:
    """Give the options of a job of ours: Spark's planner is another process, and has to know this one's settings."""
    file = file_in_use()
    return {"uri": uri, **({"settingsFile": str(file)} if file else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a user may say about the source. Spark gives every option as text."""

    uri: str
    source: str = "change-stream"
    """`change-stream`, or `oplog` for the engine."""
    selection: Selection
    snapshot: bool = False
    """Batch only: the documents of the collection instead of its history."""
    start: Offset | None = None
    """Where to begin; None means now."""
    end: Offset | None = None
    """Where to end. For a batch None means now; a stream reads nothing behind it, and without it goes on for ever."""
    max_events: int | None = None
    max_bytes: int | None = None
    inline_bytes: int = 16 * MIB
    """Batches up to this size travel inside their tasks, because the planner has read them anyway."""
    partitions: int
    partition_by: PartitionBy = PartitionBy.RANGE
    heartbeat_seconds: int = 10
    """An idle stream moves its position on when the cluster time is this far ahead, and so never ages out."""
    infer_schema: bool = False
    sampling_size: int = 1_000
    fail_fast: bool = False
    """A value that does not fit its declared column fails the query instead of being null."""
    policy: Policy = NO_POLICY
    """What happens to fields before a row is made."""
    hand_over: str | None = None
    """The folder in which the driver of a job of ours looks for the rows of small batches (`handover.py`)."""

    @property
    def is_limited(self) -> bool:
        """Whether batches are cut."""
        return self.max_events is not None or self.max_bytes is not None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options; their names do not depend on case. Unknown ones are an error."""
        options = {name.lower(): value for name, value in given.items()}
        for old, new in _RENAMED.items():
            if old.lower() in options:
                warnings.warn(f"the option {old} is called {new} now", DeprecationWarning, stacklevel=2)
                options.setdefault(new.lower(), options.pop(old.lower()))
        unknown = sorted(options.keys() - _KNOWN.keys())
        if unknown:
            known = ", ".join(sorted(_KNOWN.values()))
            raise SettingsError(f"format tailrace has no option {', '.join(unknown)}", hint=f"It has: {known}.")
        return _Parsed(options).result()


_KNOWN = {
    name.lower(): name
    for name in (
        "uri", "source", "namespaces", "scope", "pipeline", "fullDocument", "fullDocumentBeforeChange", "snapshot",
        "startAfter", "startAtOperationTime", "endAt", "endAtOperationTime", "maxEventsPerBatch", "maxBytesPerBatch",
        "inlineBytes", "partitions", "partitionBy", "heartbeatSeconds", "inferSchema", "samplingSize", "mode",
        "settingsFile", "handOverFolder",
    )
}  # fmt: skip


_RENAMED = {"carryBytes": "inlineBytes"}
"""Old names, which work for one release."""


class _Parsed:
    """One reading of the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def result(self) -> SourceOptions:
        file = self._text("settingsFile")
        settings = Settings.load(Path(file) if file else None)
        server = settings.mongodb
        selection = replace(self._selection(), family=server.family, soft_delete_field=server.soft_delete_field)
        return SourceOptions(
            uri=self._text("uri") or settings.mongodb.uri.get_secret_value(),
            source=self._one_of("source", ("change-stream", "oplog")),
            selection=selection,
            snapshot=self._flag("snapshot"),
            start=self._position("startAfter", "startAtOperationTime"),
            end=self._position("endAt", "endAtOperationTime"),
            max_events=self._number("maxEventsPerBatch", None, least=1),
            max_bytes=self._number("maxBytesPerBatch", None, least=1),
            inline_bytes=self._number("inlineBytes", 16 * MIB) or 0,
            partitions=min(self._number("partitions", os.cpu_count() or 1, least=1) or 1, _MOST_PARTITIONS),
            partition_by=PartitionBy(self._one_of("partitionBy", tuple(PartitionBy))),
            heartbeat_seconds=self._number("heartbeatSeconds", 10, least=1) or 1,
            infer_schema=self._flag("inferSchema"),
            sampling_size=self._number("samplingSize", 1_000, least=1) or 1,
            fail_fast=self._one_of("mode", ("permissive", "failfast")) == "failfast",
            policy=policy_of(settings, selection.pipeline),
            hand_over=self._text("handOverFolder"),
        )

    def _selection(self) -> Selection:
        names = [name.strip() for name in (self._text("namespaces") or "").split(",") if name.strip()]
        return Selection(
            namespaces=Namespaces.parse(names),
            scope=Scope(self._one_of("scope", tuple(Scope))),
            pipeline=tuple(read_pipeline(self._text("pipeline") or "[]", "option pipeline")),
            full_document=self._text("fullDocument"),
            full_document_before_change=self._text("fullDocumentBeforeChange"),
        )

    def _position(self, token: str, time: str) -> Offset | None:
        given_token, given_time = self._text(token), self._text(time)
        if given_token and given_time:
            raise SettingsError(f"give {token} or {time}, not both", hint="They name the same place in two ways.")
        if given_token:
            return Offset.from_hex(given_token)
        if not given_time:
            return None
        try:
            return Offset.at(ClusterTime.parse(given_time).timestamp)
        except ValueError:
            hint = "Write seconds:increment, or ISO 8601, which is UTC unless it names another time zone."
            raise SettingsError(f"option {time} is not a time: {given_time!r}", hint=hint) from None

    def _text(self, name: str) -> str | None:
        return self._options.get(name.lower()) or None

    def _flag(self, name: str) -> bool:
        return self._one_of(name, ("false", "true")) == "true"

    def _one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """The first choice is the default."""
        value = (self._text(name) or choices[0]).lower()
        if value not in choices:
            raise SettingsError(f"option {name} cannot be {value!r}", hint=f"Choose {' or '.join(choices)}.")
        return value

    def _number(self, name: str, default: int | None, *, least: int = 0) -> int | None:
        value = self._text(name)
        if value is None:
            return default
        if not value.isdigit() or int(value) < least:
            raise SettingsError(f"option {name} cannot be {value!r}", hint=f"Give a number from {least} on.")
        return int(value)
