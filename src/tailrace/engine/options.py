"""What a client asks for: the `aggregate` command of a change stream, read as its server would.

Refusals have the server's codes, names and messages, because drivers and programs look at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bson.timestamp import Timestamp

from tailrace.engine.dialect import Dialect
from tailrace.engine.scope import INTERNAL_DATABASES, Scope, ScopeKind
from tailrace.engine.server_types import type_name
from tailrace.errors import InvalidResumeToken, StreamRefused
from tailrace.token.resume_token import ResumeToken, TokenData

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChangeStreamOptions:
    """The options of the `$changeStream` stage, under the names MongoDB has for them."""

    resume_after: ResumeToken | None = None
    start_after: ResumeToken | None = None
    start_at_operation_time: Timestamp | None = None
    full_document: str = "default"
    full_document_before_change: str = "off"
    show_expanded_events: bool = False
    show_system_events: bool = False
    show_migration_events: bool = False
    show_raw_update_description: bool = False
    allow_to_run_on_system_ns: bool = False
    all_changes_for_cluster: bool = False

    @property
    def token(self) -> ResumeToken | None:
        """Give the token to start from, whichever way it was given."""
        return self.resume_after or self.start_after


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream: what it watches, how, and the user's stages."""

    scope: Scope
    options: ChangeStreamOptions = ChangeStreamOptions()
    stages: Sequence[Document] = ()
    batch_size: int | None = None
    from_router: bool = False
    """A router merges the stream: events carry `$sortKey`, and topology changes are shown."""
    v2_tokens: bool = False
    collation: Document | None = None
    start_token: TokenData | None = field(default=None)
    """What is inside the token to start from."""


_STRING, _OBJECT, _BOOL, _TIMESTAMP = "string", "object", "bool", "timestamp"
_SINCE: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "fullDocument": (_STRING, (4, 2)),
    "resumeAfter": (_OBJECT, (4, 2)),
    "startAfter": (_OBJECT, (4, 2)),
    "startAtOperationTime": (_TIMESTAMP, (4, 2)),
    "allChangesForCluster": (_BOOL, (4, 2)),
    "showMigrationEvents": (_BOOL, (4, 2)),
    "fullDocumentBeforeChange": (_STRING, (4, 4)),
    "allowToRunOnConfigDB": (_BOOL, (4, 2)),
    "allowToRunOnSystemNS": (_BOOL, (5, 0)),
    "showSystemEvents": (_BOOL, (6, 0)),
    "showExpandedEvents": (_BOOL, (6, 0)),
    "showRawUpdateDescription": (_BOOL, (6, 0)),
}
"""The options: their types, and the version since which there are such."""
_FULL_DOCUMENT: Final = ("default", "updateLookup", "whenAvailable", "required")
_BEFORE_CHANGE: Final = ("off", "whenAvailable", "required")
_SPLIT: Final = "$changeStreamSplitLargeEvent"


def parse_command(command: Document, database: str, dialect: Dialect) -> StreamSpec:
    """Read an `aggregate` command whose pipeline begins with `$changeStream`."""
    target = command["aggregate"]
    collection = target if isinstance(target, str) else None
    pipeline = _pipeline(command)
    if not pipeline or "$changeStream" not in pipeline[0]:
        raise StreamRefused("$changeStream is only valid as the first stage in a pipeline", server_code=40602)
    options = parse_options(pipeline[0]["$changeStream"], dialect)
    check_namespace(database, collection, options)
    start = read_token(options, dialect)
    for stage in pipeline[1:]:
        if "$changeStream" in stage:
            check_namespace(database, collection, parse_options(stage["$changeStream"], dialect))
            raise StreamRefused("$changeStream is only valid as the first stage in a pipeline", server_code=40602)
    return StreamSpec(
        scope=scope_of(database, collection, options),
        options=options,
        stages=pipeline[1:],
        batch_size=command.get("cursor", {}).get("batchSize"),
        from_router=bool(command.get("fromMongos") and command.get("needsMerge")),
        v2_tokens=bool(command.get("$_generateV2ResumeTokens"))
        or (dialect.splits_large_events and any(_SPLIT in stage for stage in pipeline)),
        collation=command.get("collation"),
        start_token=start,
    )


def _pipeline(command: Document) -> list[Document]:
    pipeline = command.get("pipeline")
    if not isinstance(pipeline, list):
        raise StreamRefused("'pipeline' option must be specified as an array", server_code=14)
    for stage in pipeline:
        if not isinstance(stage, Mapping):
            message = "Each element of the 'pipeline' array must be an object"
            raise StreamRefused(message, server_code=14)
        if len(stage) != 1:
            raise StreamRefused(
                "A pipeline stage specification object must contain exactly one field.",
                server_code=40323,
            )
    return list(pipeline)


def scope_of(database: str, collection: str | None, options: ChangeStreamOptions) -> Scope:
    """Tell what a stream on this namespace watches."""
    if collection is not None:
        return Scope.of_collection(database, collection)
    if options.all_changes_for_cluster:
        return Scope.of_cluster()
    return Scope.of_database(database)


def parse_options(value: Any, dialect: Dialect) -> ChangeStreamOptions:
    """Read the argument of `$changeStream`."""
    if not isinstance(value, Mapping):
        code = 6188500 if dialect.since(6, 0) else 50808
        raise StreamRefused("the $changeStream stage must be specified as an object", server_code=code)
    for name, option in value.items():
        _check_option(name, option, dialect)
    full_document = _full_document(value.get("fullDocument", "default"), dialect)
    before = value.get("fullDocumentBeforeChange", "off")
    _check_choice("fullDocumentBeforeChange", before, _BEFORE_CHANGE)
    if value.get("resumeAfter") is not None and value.get("startAfter") is not None:
        raise StreamRefused(
            "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage",
            server_code=50865,
        )
    if "startAtOperationTime" in value and ("resumeAfter" in value or "startAfter" in value):
        end = "" if dialect.since(6, 0) else "."
        raise StreamRefused(
            f"Only one type of resume option is allowed, but multiple were found{end}",
            server_code=40674,
        )
    return ChangeStreamOptions(
        resume_after=_token(value.get("resumeAfter")),
        start_after=_token(value.get("startAfter")),
        start_at_operation_time=value.get("startAtOperationTime"),
        full_document=full_document,
        full_document_before_change=before,
        show_expanded_events=value.get("showExpandedEvents", False),
        show_system_events=value.get("showSystemEvents", False),
        show_migration_events=value.get("showMigrationEvents", False),
        show_raw_update_description=value.get("showRawUpdateDescription", False),
        allow_to_run_on_system_ns=value.get("allowToRunOnSystemNS", False),
        all_changes_for_cluster=value.get("allChangesForCluster", False),
    )


def _check_option(name: str, option: Any, dialect: Dialect) -> None:
    expected, since = _SINCE.get(name, ("", (99,)))
    if not dialect.since(*since):
        message = f"BSON field '$changeStream.{name}' is an unknown field."
        raise StreamRefused(message, server_code=40415)
    if (found := type_name(option)) != expected:
        raise StreamRefused(
            f"BSON field '$changeStream.{name}' is the wrong type '{found}', expected type '{expected}'",
            server_code=14,
        )


def _full_document(value: str, dialect: Dialect) -> str:
    choices = _FULL_DOCUMENT if dialect.since(6, 0) else _FULL_DOCUMENT[:2]
    if dialect.since(5, 0):
        _check_choice("fullDocument", value, choices)
    elif value not in choices:
        raise StreamRefused(
            "unrecognized value for the 'fullDocument' option to the $changeStream stage. "
            f'Expected "default" or "updateLookup", got "{value}"',
            server_code=40575,
        )
    return value


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise StreamRefused(
            f"Enumeration value '{value}' for field '$changeStream.{name}' is not a valid value.",
            server_code=2,
        )


def _token(value: Document | None) -> ResumeToken | None:
    return None if value is None else ResumeToken.parse(value)


def read_token(options: ChangeStreamOptions, dialect: Dialect) -> TokenData | None:
    """Look inside the token to start from, and refuse to resume after an invalidate."""
    if options.token is None:
        return None
    data = options.token.decode(newest_version=dialect.newest_token_version, fragments=dialect.splits_large_events)
    if options.resume_after is not None and data.from_invalidate:
        raise InvalidResumeToken(
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification."
        )
    return data


def check_namespace(database: str, collection: str | None, options: ChangeStreamOptions) -> None:
    """Refuse the namespaces on which no stream can be opened."""
    if options.all_changes_for_cluster:
        if database != "admin" or collection is not None:
            found = f"{database}.{collection or '$cmd.aggregate'}"
            raise StreamRefused(
                "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' "
                f"database, and with no collection name; found {found}",
                server_code=72,
            )
        return
    if database.encode() in INTERNAL_DATABASES:
        raise StreamRefused(f"$changeStream may not be opened on the internal {database} database", server_code=73)
    system = collection is not None and collection.startswith("system.")
    if system and not options.allow_to_run_on_system_ns:
        raise StreamRefused(
            f"$changeStream may not be opened on the internal {database}.{collection} collection",
            server_code=73,
        )


def is_whole_cluster(spec: StreamSpec) -> bool:
    """Tell whether a stream watches everything, and so is never invalidated."""
    return spec.scope.kind is ScopeKind.CLUSTER
