"""The options of `watch()`, and the `aggregate` command they make."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.collation import Collation
from pymongo.read_concern import ReadConcern

from tailrace.client.commands import Aggregate
from tailrace.driver.commands import Scope
from tailrace.driver.rules import ResumeRules

Token: TypeAlias = Mapping[str, Any] | bytes
"""A resume token: a document, or its BSON as `Batch` gives it."""
TokenCallback: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None] | None]

SPLIT_STAGE: Mapping[str, Any] = {"$changeStreamSplitLargeEvent": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """Everything `watch()` accepts besides target and pipeline.

    Values that the server judges are passed on as they are; None means: do not send it.
    """

    full_document: Any = None
    """"updateLookup", "whenAvailable" or "required": what updates carry in `fullDocument`."""
    full_document_before_change: Any = None
    """"whenAvailable" or "required": whether events carry the document before the change."""
    resume_after: Token | None = None
    """Begin after this token's event; an invalidate event's token is refused."""
    start_after: Token | None = None
    """Begin after this token's event, also when it is an invalidate."""
    start_at_operation_time: Timestamp | None = None
    """Begin at this cluster time."""
    max_await_time_ms: int | None = None
    """How long the server waits for an event before it answers with an empty batch."""
    batch_size: int | None = None
    """Most events per batch."""
    collation: Collation | Mapping[str, Any] | None = None
    """How strings compare in the pipeline."""
    comment: Any = None
    """Shown in the server's logs and profiler; sent with getMore from 4.4 on."""
    show_expanded_events: Any = None
    """Whether to report index and collection changes too (6.0)."""
    session: Any = None
    """A session to use; otherwise the stream has one of its own, the same over all resumes."""
    read_preference: Any = None
    """Which servers may hold the cursor, also after a resume, as in `pymongo.ReadPreference`; else the target's."""
    read_concern: ReadConcern | None = None
    """"majority" or none is all that servers accept; the target's unless given."""
    timeout_ms: int | None = None
    """Time limit for opening and for each iteration; the client's timeoutMS unless given."""
    resume_for: timedelta | float | None = None
    """Not in the specification: go on trying to resume for this long (a number is seconds), instead of once."""
    split_large_events: bool = False
    """Not in the specification: let the server split events over 16 MB, and put them together here."""
    rules: ResumeRules = ResumeRules.DEFAULT
    """Which errors are resumed."""
    on_resume_token: TokenCallback | None = None
    """Called with each new token; only for asynchronous streams."""

    def __post_init__(self) -> None:
        # The one check that the specification asks of a client: such a getMore could never answer in time.
        if self.timeout_ms and self.max_await_time_ms and self.max_await_time_ms >= self.timeout_ms:
            raise ValueError("max_await_time_ms must be less than timeout_ms")
        if not (self.resume_for is None or isinstance(self.resume_for, timedelta | int | float)):
            raise TypeError(f"resume_for is a timedelta or a number of seconds, not {self.resume_for!r}")

    @property
    def resume_budget(self) -> timedelta | None:
        """How long to go on trying to resume."""
        given = self.resume_for
        return given if given is None or isinstance(given, timedelta) else timedelta(seconds=given)


def first_stage(scope: Scope, options: WatchOptions, position: Mapping[str, Any]) -> dict[str, Any]:
    """Make the `$changeStream` stage that begins at `position` (resumeAfter, startAfter, ...)."""
    asked = {
        "fullDocument": options.full_document,
        "fullDocumentBeforeChange": options.full_document_before_change,
        **position,
        "showExpandedEvents": options.show_expanded_events,
        "allChangesForCluster": True if scope.whole_cluster else None,
    }
    return {"$changeStream": {name: value for name, value in asked.items() if value is not None}}


def original_position(options: WatchOptions) -> dict[str, Any]:
    """Give the starting point exactly as the user asked, contradictions included."""
    return {
        "resumeAfter": as_document(options.resume_after),
        "startAfter": as_document(options.start_after),
        "startAtOperationTime": options.start_at_operation_time,
    }


def aggregate(
    scope: Scope,
    pipeline: Sequence[Mapping[str, Any]],
    options: WatchOptions,
    position: Mapping[str, Any],
    *,
    split: bool,
) -> Aggregate:
    """Make the command that opens a cursor at `position`."""
    stages = [first_stage(scope, options, position), *pipeline]
    if split:
        stages.append(SPLIT_STAGE)
    command: dict[str, Any] = {
        "aggregate": scope.aggregate_target,
        "pipeline": stages,
        "cursor": {} if options.batch_size is None else {"batchSize": options.batch_size},
    }
    if options.collation is not None:
        given = options.collation
        command["collation"] = given.document if isinstance(given, Collation) else given
    if options.comment is not None:
        command["comment"] = options.comment
    return Aggregate(scope.database, command)


def as_document(token: Any) -> Any:
    """Wrap a token's bytes so that they encode unchanged; leave everything else to the server."""
    return RawBSONDocument(token) if isinstance(token, bytes) else token


def refuse_unknown(call: str, options: Mapping[str, Any], known: set[str]) -> None:
    """Raise for the first option that a call does not have."""
    unknown = sorted(options.keys() - known)
    if unknown:
        raise TypeError(f"{call} has no option {unknown[0]!r}; it has {', '.join(sorted(known))}")
